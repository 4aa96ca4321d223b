"""Linear regressions whose batches take their time, so that their steps can be counted."""

import time

import keras
import tensorflow as tf

from lingpipe import layers, model_registry
from lingpipe.input import batch_share, linear_input
from params import linear_regression

_MANY_STEPS = 10**7


class SlowInput(linear_input.LinearInput):
    """Training batches of which each comes a while after the one before it."""

    @classmethod
    def Params(cls):
        """Returns the InstantiableParams of this input."""
        p = super().Params()
        p.Define('pause_milliseconds', 40, 'Time that a batch takes.')
        return p

    def training_dataset(self, position=0, share=batch_share.WHOLE):
        """Returns the batches of `LinearInput`, slowly."""
        def pause(features, targets, weights):
            paused = tf.numpy_function(self._pause, [weights], weights.dtype)
            return features, targets, tf.ensure_shape(paused, weights.shape)

        return super().training_dataset(position, share).map(pause)

    def _pause(self, weights):
        time.sleep(self.params.pause_milliseconds / 1000)
        return weights


@model_registry.RegisterSingleTaskModel
class OneStage(linear_regression.EightWeights):
    """Eight weights and a bias, which everybody knows."""

    def Train(self):
        return SlowInput.Params().Set(name='slow_train', split='train', num_examples=1000, batch_size=64)

    def Task(self):
        p = super().Task()
        p.train.Set(max_steps=_MANY_STEPS, learning_rate=0.01, steps_per_loop=1, save_interval_seconds=2)
        p.train.summary_interval_steps = _MANY_STEPS  # a full disk shows at a checkpoint
        return p


@model_registry.RegisterSingleTaskModel
class TwoStages(OneStage):
    """Two layers, one for each of two workers."""

    NUM_STAGES = 2

    def Task(self):
        p = super().Task()
        hidden = layers.KerasParams(keras.layers.Dense, units=8)
        p.body.layers = [*[hidden] * (self.NUM_STAGES - 1), layers.KerasParams(keras.layers.Dense, units=1)]
        p.body.Set(num_partitions=self.NUM_STAGES, num_micro_batches=4)
        return p


@model_registry.RegisterSingleTaskModel
class SixteenStages(TwoStages):
    """Sixteen layers, one for each of as many workers."""

    NUM_STAGES = 16
