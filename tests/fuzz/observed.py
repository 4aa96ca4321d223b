"""What a model is trained with and what comes of it, as nests of arrays."""

from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tests.plain_stack import micro_batch_rows

_EQUAL_ROWS = 16


class Data(NamedTuple):
    """What a model is trained with."""

    x: Any  # nest of arrays `[batch, ...]`
    y: Any  # nest of arrays `[batch, ...]`
    sample_weight: Any  # array `[batch, ...]`, or None
    # a Keras loss, a function `(y_true, outputs)` that returns a scalar or a tensor `[batch, ...]`, or what `compile`
    # takes
    loss: Any

    def total(self, y, outputs, sample_weight):
        """Return the loss of a whole batch, a scalar."""
        if isinstance(self.loss, keras.losses.Loss):
            return self.loss(y, outputs, sample_weight)
        values = self.loss(y, outputs)
        if sample_weight is None:
            return tf.reduce_mean(values)
        weights = tf.broadcast_to(tf.cast(sample_weight, values.dtype), values.shape)
        return tf.reduce_sum(values * weights) / tf.reduce_sum(weights)

    def rows(self, rows):
        """Return some of the rows."""
        return self._replace(**{name: take(rows, nest) for name, nest in self._asdict().items() if name != 'loss'})


class Step(NamedTuple):
    """What a training step computes."""

    loss: Any  # scalar
    outputs: Any  # nest of arrays or tensors `[batch, ...]`, as the model returns them
    gradients: list  # list of arrays or Nones, one a trainable variable
    input_gradients: list  # list of arrays or Nones, one a floating-point input, where they are asked for


class Fitted(NamedTuple):
    """The history of `fit`, the arrays of the optimizer, and what `evaluate` says after it."""

    history: dict
    slots: list
    evaluation: dict


def comparable(history, has_short_batch):
    """Return a history without the losses of single outputs where a batch is short: Keras then means them over
    batches."""
    return {name: values for name, values in history.items() if name == 'loss' or not (
        has_short_batch and name.endswith('_loss'))}


def repeated(data):
    """Return the first row of `Data`, many times."""
    def repeat(nest):
        return tf.nest.map_structure(lambda leaf: None if leaf is None else tf.repeat(leaf[:1], _EQUAL_ROWS, 0), nest)

    return data._replace(x=repeat(data.x), y=repeat(data.y), sample_weight=repeat(data.sample_weight))


def are_different(run, num_micro_batches):
    """Return whether two calls, and two micro-batches, of equal rows give different outputs."""
    first, second = [[np.asarray(leaf) for leaf in tf.nest.flatten(as_arrays(run()))] for _ in range(2)]
    one, *others = micro_batch_rows(_EQUAL_ROWS, num_micro_batches)
    least = _EQUAL_ROWS // num_micro_batches
    return (any(map(_differ, first, second)),
            any(_differ(leaf[other][:least], leaf[one][:least]) for leaf in first for other in others))


def _differ(one, other):
    return not np.allclose(one, other, rtol=1e-4, atol=1e-5)  # by more than rounding


def predicted(model, data):
    """Return what a plain model predicts of a batch."""
    return as_arrays(model.predict(data.x, batch_size=len(tf.nest.flatten(data.x)[0]), verbose=0))


def as_arrays(nest):
    """Return a nest of tensors, sparse ones too, and Nones as one of arrays and Nones."""
    return tf.nest.map_structure(lambda leaf: None if leaf is None else np.asarray(tf.convert_to_tensor(leaf)), nest)


def take(rows, nest):
    """Return some of the rows of a nest of arrays or tensors."""
    return tf.nest.map_structure(lambda leaf: None if leaf is None else leaf[rows], nest)


def as_tensors(nest):
    """Return a nest of arrays and Nones as one of tensors and Nones."""
    return tf.nest.map_structure(lambda leaf: None if leaf is None else tf.constant(leaf), nest)


def floats_of(nest):
    """Return the list of the floating-point tensors of a nest."""
    return [leaf for leaf in tf.nest.flatten(nest) if leaf.dtype.is_floating]


def zeros_for_none(gradients, tensors):
    """Return gradients as arrays; a tape hands a pipeline zeros for the outputs that a loss does not read."""
    return [np.zeros(tensor.shape, keras.backend.standardize_dtype(tensor.dtype)) if gradient is None
            else np.asarray(tf.convert_to_tensor(gradient)) for gradient, tensor in zip(gradients, tensors)]
