"""Models that train in a second, whose weights say by hand what an evaluation must print."""

import os
import pathlib

import keras
import tensorflow as tf

from lingpipe import base_model_params, layers, model_registry
from lingpipe.input import batch_share, linear_input
from lingpipe.models import keras_task
from tests.fuzz_runs import strikes

NUM_TESTED = 6
DENSE, DROPOUT, NORM = 'dense', 'dropout', 'norm'


class CountedInput(linear_input.LinearInput):
    """Batches that a fault can strike at, and a note of the example at which training begins."""

    def training_dataset(self, position=0, share=batch_share.WHOLE):
        if 'POSITION' in os.environ:
            pathlib.Path(os.environ['POSITION']).write_text(str(position))
        return _reaching(strikes.BATCH, super().training_dataset(position, share))

    def evaluation_dataset(self):
        return _reaching(strikes.EVALUATION, super().evaluation_dataset())


def _reaching(moment, dataset):
    def reach(features, targets, weights):
        reached = tf.numpy_function(lambda values: (strikes.reach(moment), values)[1], [weights], weights.dtype)
        return features, targets, tf.ensure_shape(reached, weights.shape)

    return dataset.map(reach)


@model_registry.RegisterSingleTaskModel
class Tiny(base_model_params.SingleTaskModelParams):
    """Three dense layers."""

    LAYERS = ((DENSE, 4), (DENSE, 3), (DENSE, 1))
    NAMES = ('first', 'second', 'third', 'fourth', 'fifth')
    OPTIMIZER = None

    def Train(self):
        strikes.reach(strikes.START)
        return CountedInput.Params().Set(name='train', split='train', num_features=3, num_examples=20, batch_size=4)

    def Test(self):
        return CountedInput.Params().Set(
            name='test', split='test', num_features=3, num_examples=NUM_TESTED, batch_size=4)

    def Task(self):
        p = keras_task.KerasTask.Params().Set(name='tiny', loss=layers.KerasParams(keras.losses.MeanSquaredError))
        p.body.layers = [self._layer(name, *kind) for name, kind in zip(self.NAMES, self.LAYERS)]
        p.train.optimizer = self.OPTIMIZER
        return p

    def _layer(self, name, kind, size):
        if kind == DENSE:
            activation = 'tanh' if name != self.NAMES[len(self.LAYERS) - 1] else None
            return layers.KerasParams(keras.layers.Dense, name=name, units=size, activation=activation)
        if kind == DROPOUT:
            return layers.KerasParams(keras.layers.Dropout, name=name, rate=size)
        return layers.KerasParams(keras.layers.BatchNormalization, name=name, momentum=size)


@model_registry.RegisterSingleTaskModel
class Momentum(Tiny):
    """The same, with a slot for each weight."""

    OPTIMIZER = layers.KerasParams(keras.optimizers.SGD, momentum=0.9)


@model_registry.RegisterSingleTaskModel
class Adam(Tiny):
    """The same, with two slots for each weight."""

    OPTIMIZER = layers.KerasParams(keras.optimizers.Adam)


@model_registry.RegisterSingleTaskModel
class Wide(Tiny):
    """The same layers, one of another size."""

    LAYERS = ((DENSE, 4), (DENSE, 5), (DENSE, 1))


@model_registry.RegisterSingleTaskModel
class Dotted(Tiny):
    """The same layers under names with dots."""

    NAMES = ('1.first', 'sec.ond', 'third.')


@model_registry.RegisterSingleTaskModel
class Noisy(Tiny):
    """Random numbers, and moving averages."""

    LAYERS = ((DENSE, 4), (DROPOUT, 0.25), (NORM, 0.5), (DENSE, 3), (DENSE, 1))


MODELS = {cls.__name__: cls for cls in (Tiny, Momentum, Adam, Wide, Dotted, Noisy)}
