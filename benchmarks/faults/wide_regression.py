"""A linear regression through wide layers, whose checkpoints take a moment to write."""

import keras

from lingpipe import layers, model_registry
from params import linear_regression

_WIDTH = 512
_NUM_WIDE_LAYERS = 8


@model_registry.RegisterSingleTaskModel
class WideStages(linear_regression.EightWeights):
    """Nine layers in two partitions; with Adam's slots a checkpoint has 21 MiB."""

    def Task(self):
        p = super().Task()
        wide = layers.KerasParams(keras.layers.Dense, units=_WIDTH, activation='relu')
        p.body.Set(num_partitions=2, num_micro_batches=2, layers=[
            *[wide] * _NUM_WIDE_LAYERS, layers.KerasParams(keras.layers.Dense, units=1)])
        p.train.Set(
            max_steps=10**7, learning_rate=1e-4, optimizer=layers.KerasParams(keras.optimizers.Adam), steps_per_loop=1,
            summary_interval_steps=0, save_interval_seconds=0.0)
        return p


DEFAULT = WideStages
