"""Linear regression: the smallest model, with a known solution.

    python run.py --model=params.linear_regression --mode=train --logdir=logs/linear_regression
"""

import keras

from lingpipe import base_model_params, layers, model_registry
from lingpipe.input import linear_input
from lingpipe.models import keras_task


@model_registry.RegisterSingleTaskModel
class EightWeights(base_model_params.SingleTaskModelParams):
    """Eight weights and a bias, recovered from a thousand noisy examples in seconds."""

    def Train(self):
        return linear_input.LinearInput.Params().Set(
            name='linear_train', split='train', num_examples=1000, batch_size=60)

    def Test(self):
        return linear_input.LinearInput.Params().Set(name='linear_test', split='test', num_examples=250, batch_size=125)

    def Task(self):
        p = keras_task.KerasTask.Params().Set(
            name='eight_weights', loss=layers.KerasParams(keras.losses.MeanSquaredError))
        p.body.layers = [layers.KerasParams(keras.layers.Dense, units=1)]
        p.train.Set(max_steps=400, learning_rate=0.05, summary_interval_steps=20)
        return p


DEFAULT = EightWeights
