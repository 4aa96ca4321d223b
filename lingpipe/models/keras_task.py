"""A task with any Keras loss, for bodies without a task of their own."""

from typing import Any

import keras
import tensorflow as tf

from lingpipe import hyperparams
from lingpipe.layers import keras_params
from lingpipe.models import base_task
from lingpipe.stages import losses

_WEIGHTED_MEAN = 'mean_with_sample_weight'
_ADVICE = 'Set it, as to KerasParams(keras.losses.SparseCategoricalCrossentropy, from_logits=True).'


class KerasTask(base_task.BaseTask):
    """A task that trains a body on a Keras loss.

    The loss of a batch is the weighted mean of the losses of its examples or tokens, as with Keras's reduction
    'mean_with_sample_weight'. By default, Keras divides the weighted sum by the number of examples or tokens instead.
    Both results are equal if all weights are 1. Examples of weight 0, which pad a batch, have no effect.
    """

    @classmethod
    def Params(cls) -> hyperparams.InstantiableParams:
        p = super().Params()
        p.Define('loss', None, 'KerasParams of a Keras loss, as KerasParams(keras.losses.MeanSquaredError).')
        return p

    def __init__(self, params: hyperparams.InstantiableParams) -> None:
        keras_params.require(params.loss, keras.losses.Loss, 'task.loss', _ADVICE)
        self._keras_loss = params.loss.Instantiate()
        if self._keras_loss.reduction not in ('sum_over_batch_size', 'mean', _WEIGHTED_MEAN):
            raise ValueError(
                f'loss.reduction={self._keras_loss.reduction!r} is not for training on parts of a batch, of which the '
                'task takes the mean by weights. Leave reduction out.')
        self._keras_loss.reduction = _WEIGHTED_MEAN
        self._sum_and_weight = losses.as_metrics(self._keras_loss)
        super().__init__(params)

    def check_input(self, training_input: Any) -> None:
        """Raise ValueError if tokens or class labels of the input do not fit the body."""
        super().check_input(training_input)
        if isinstance(self._keras_loss, keras.losses.SparseCategoricalCrossentropy):
            self.require_labels(training_input)

    def loss(self, targets: tuple, outputs: Any) -> dict[str, Any]:
        """Return the metric 'loss' of one micro-batch; see `BaseTask.loss`.

        Args:
            targets: tuple (labels, weights, ...). Labels have the shape that the Keras loss takes. Weights are
                `[batch, length]`, or `[batch]` for whole rows.
            outputs: tensor `[batch, ...]`, as the loss takes it.

        Raises:
            ValueError: the loss of a batch is not a mean over its examples.
        """
        labels, outputs, weights = self.metric_arguments(targets, outputs)
        outputs = losses.in_float32(outputs)
        total, weight = self._sum_and_weight(labels, outputs, weights)['loss']
        return {'loss': (tf.math.divide_no_nan(total, weight), weight)}
