"""A model that trains in a second, for the tests of the trainer; also the model that they run `run.py` with."""

import time

import keras
import tensorflow as tf

from lingpipe import base_model_params, layers, model_registry
from lingpipe.input import image_input, row_order
from lingpipe.models import image_classifier

POISONED_STEP = 6
SLOW_SECONDS = 0.3


class PoisonedInput(image_input.ImageInput):
    """Training batches of which the one of step 6 is not a number."""

    def training_dataset(self, position=0, share=row_order.WHOLE):
        first = position // self.params.batch_size + 1

        def poison(index, batch):
            images, labels, weights = batch
            return images * tf.where(index + first == POISONED_STEP, float('nan'), 1.0), labels, weights

        return super().training_dataset(position, share).enumerate().map(poison)


class SlowInput(image_input.ImageInput):
    """Every batch takes its time, and none is made ahead."""

    def training_dataset(self, position=0, share=row_order.WHOLE):
        def wait(labels):
            time.sleep(SLOW_SECONDS)
            return labels

        options = tf.data.Options()
        options.experimental_optimization.apply_default_optimizations = False
        return super().training_dataset(position, share).map(lambda images, labels, weights: (
            images, tf.ensure_shape(tf.numpy_function(wait, [labels], tf.int32), labels.shape),
            weights)).with_options(options)


@model_registry.RegisterSingleTaskModel
class TinyDigits(base_model_params.SingleTaskModelParams):
    """Two dense layers with batch norm and dropout between them, on the handwritten digits."""

    INPUT = image_input.ImageInput

    def Train(self):
        return self.INPUT.Params().Set(
            dataset='digits', split='train', batch_size=32, image_size=8, augmentation='digits')

    def Test(self):
        return image_input.ImageInput.Params().Set(dataset='digits', split='test', batch_size=150, image_size=8)

    def Task(self):
        p = image_classifier.ImageClassifier.Params().Set(name='tiny_digits', label_smoothing=0.1)
        p.body.Set(num_partitions=2, num_micro_batches=2, layers=[
            layers.KerasParams(keras.layers.Flatten),
            layers.KerasParams(keras.layers.Dense, units=16, activation='relu'),
            layers.KerasParams(keras.layers.BatchNormalization, momentum=0.9),
            layers.KerasParams(keras.layers.Dropout, rate=0.2),
            layers.KerasParams(keras.layers.Dense, units=10)])
        p.train.Set(
            max_steps=12, steps_per_loop=4, summary_interval_steps=4, ema_decay=0.9, clip_gradient_norm_to_value=1.0,
            l2_regularizer_weight=1e-3, optimizer=layers.KerasParams(keras.optimizers.SGD, momentum=0.9),
            lr_schedule=layers.KerasParams(
                keras.optimizers.schedules.ExponentialDecay, initial_learning_rate=0.1, decay_steps=10, decay_rate=0.5))
        return p


@model_registry.RegisterSingleTaskModel
class PoisonedDigits(TinyDigits):
    """TinyDigits, with a batch that is not finite."""

    INPUT = PoisonedInput


@model_registry.RegisterSingleTaskModel
class StarvedDigits(TinyDigits):
    """TinyDigits, with an input that is waited for."""

    INPUT = SlowInput


class Greedy(keras.layers.Layer):
    """Needs more memory in a call than any device has."""

    def call(self, inputs):
        return inputs + tf.reduce_max(tf.fill([2**58], inputs[0, 0]))


@model_registry.RegisterSingleTaskModel
class GreedyDigits(TinyDigits):
    """TinyDigits, with a layer that runs out of memory."""

    def Task(self):
        p = super().Task()
        p.body.layers.append(layers.KerasParams(Greedy))
        return p


DEFAULT = TinyDigits
