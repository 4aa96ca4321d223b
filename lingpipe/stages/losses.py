"""Results of loss functions in one form: sums with their weights, which add up over micro-batches."""

import math
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

_PLAIN = (str, int, float, bool)
_MEANS = ('sum_over_batch_size', 'mean', 'mean_with_sample_weight')


class WeightUnknownError(ValueError):
    """The weight of a loss depends on outputs, but is needed before there are any."""


def as_metrics(loss_fn: Callable) -> Callable[..., dict[str, tuple[tf.Tensor, tf.Tensor]]]:
    """Wraps a loss function for the last stage.

    Args:
        loss_fn: a Keras loss, whose own reduction then holds for the mini-batch as a whole, or a function
            `(y_true, outputs)` that returns a scalar (the mean over the examples), a tensor `[batch, ...]` (a loss for
            each, whose mean counts, weighted by sample weights if given), or, as Lingvo's tasks do, a dictionary
            from name to (mean, weight) with the entry 'loss'.

    Returns:
        Function `(y_true, outputs, sample_weight) -> {name: (sum, weight)}`; where `is_sum`, it takes `fractions`
        before the weights.
    """
    if isinstance(loss_fn, keras.losses.Loss) and loss_fn.reduction in _MEANS:
        return _KerasMean(loss_fn)
    if is_sum(loss_fn):
        return lambda y_true, outputs, fractions, sample_weight=None: {
            'loss': (_sum(loss_fn(y_true, outputs, sample_weight=sample_weight)), _sum(fractions))}

    def metrics(y_true, outputs, sample_weight=None):
        outputs = tf.nest.map_structure(_in_float32, outputs)
        result = loss_fn(y_true, outputs)
        if isinstance(result, dict):
            return _named_means(result, sample_weight)
        result = tf.convert_to_tensor(result)
        if result.shape.rank == 0:
            _refuse_weights(sample_weight, 'a scalar')
            return {'loss': _sum_and_weight(result, _num_rows(y_true, outputs))}
        if sample_weight is None:
            return {'loss': (_sum(result), _num_values(result, y_true))}
        weights = _broadcast(sample_weight, result)
        return {'loss': (_sum(result * weights), _sum(weights))}

    return metrics


def is_sum(loss_fn: Callable) -> bool:
    """Whether a loss is a sum over the examples; micro-batches share its divisor, 1, by their numbers of examples."""
    return isinstance(loss_fn, keras.losses.Loss) and loss_fn.reduction == 'sum'


def fractions(y_true: Any) -> tf.Tensor:
    """Returns a tensor `[batch]` of one over the number of rows, which adds up to 1."""
    rows = tf.shape(tf.nest.flatten(y_true)[0])[0]
    return tf.fill([rows], tf.math.divide_no_nan(1.0, tf.cast(rows, tf.float32)))


def identity(loss_fn: Callable) -> Any:
    """Returns a hashable key that is the same for losses known to compute the same.

    Two objects of one of Keras's own classes with equal settings are equal; any other loss is equal to itself alone.

    Args:
        loss_fn: as in `as_metrics`.
    """
    settings = {**vars(loss_fn), **vars(loss_fn).get('_fn_kwargs', {})} if _is_from_keras(loss_fn) else {}
    settings = {name: getattr(value, 'name', value) for name, value in settings.items() if name != '_fn_kwargs'}
    if settings and all(value is None or callable(value) or isinstance(value, _PLAIN) for value in settings.values()):
        return type(loss_fn), *sorted(settings.items())
    return loss_fn


def _is_from_keras(loss_fn):
    return isinstance(loss_fn, keras.losses.Loss) and type(loss_fn).__module__.startswith('keras.')


def _in_float32(output):
    """Losses and metrics are computed in full precision; Keras's own do so themselves."""
    if output is None or output.dtype not in (tf.bfloat16, tf.float16):
        return output
    cast = tf.cast(output, tf.float32)
    if getattr(output, '_keras_mask', None) is not None:
        cast._keras_mask = output._keras_mask
    return cast


class _KerasMean:
    """A Keras loss that averages over a mini-batch, as the sum over a micro-batch and its divisor."""

    def __init__(self, loss):
        self._averages_weights = loss.reduction == 'mean_with_sample_weight'
        self._loss = shallow_copy(loss)
        self._loss.reduction = None
        self._call, self._loss.call = loss.call, self._call_and_keep_mask

    def __call__(self, y_true, outputs, sample_weight=None):
        values = self._loss(y_true, outputs, sample_weight=sample_weight)
        if values.shape.rank == 0:
            return {'loss': _sum_and_weight(values, _num_rows(y_true, outputs))}
        weights = [getattr(outputs, '_keras_mask', None), self._mask, sample_weight if self._averages_weights else None]
        weights = [_broadcast(weight, values) for weight in weights if weight is not None]
        return {'loss': (_sum(values), _sum(math.prod(weights)) if weights else _num_values(values, y_true))}

    def _call_and_keep_mask(self, y_true, outputs):
        """A loss may mask examples itself, as ignore_class does."""
        values = self._call(y_true, outputs)
        self._mask = getattr(values, '_keras_mask', None)
        return values


def shallow_copy(keras_object: Any) -> Any:
    """Returns a copy that shares its attributes; copy.copy would save and load a Keras object, which fails for some."""
    copied = object.__new__(type(keras_object))
    vars(copied).update(vars(keras_object))
    return copied


def means(sums: dict[str, tuple[tf.Tensor, tf.Tensor]]) -> dict[str, tf.Tensor]:
    """Divides metric sums by their weights.

    Args:
        sums: dictionary from name to (sum, weight).

    Returns:
        Dictionary from name to the mean; 0 where nothing was counted.
    """
    return {name: tf.math.divide_no_nan(total, weight) for name, (total, weight) in sums.items()}


def with_added(metrics: dict[str, tuple[tf.Tensor, tf.Tensor]], added: list) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
    """Adds to the metric 'loss' the losses that layers added.

    Args:
        metrics: dictionary from name to (sum, weight).
        added: list of pairs (sum, rows), one per stage whose layers add losses.

    Returns:
        Dictionary as `metrics`, in which the mean of 'loss' has grown by the mean of every added loss.
    """
    if not added:
        return metrics
    total, weight = metrics['loss']
    return {**metrics, 'loss': (total + weight * tf.add_n(means_of_added(added)), weight)}


def means_of_added(added: list) -> list[tf.Tensor]:
    """Returns, for pairs (sum, rows) of losses that layers added, the list of their means over the mini-batch."""
    return [tf.math.divide_no_nan(total, rows) for total, rows in added]


def _named_means(result, sample_weight):
    if 'loss' not in result:
        raise ValueError(f"The loss function returned {sorted(result)}: it must return an entry 'loss'. Add it.")
    _refuse_weights(sample_weight, 'means with weights of its own')
    return {name: _sum_and_weight(mean, tf.cast(weight, tf.float32)) for name, (mean, weight) in result.items()}


def _refuse_weights(sample_weight, returned):
    if sample_weight is not None:
        raise ValueError(
            f'sample_weight was given, but the loss function returns {returned}, to which it cannot be applied. '
            'Return a loss for each example.')


def _sum_and_weight(mean, weight):
    """An empty micro-batch has no mean, and sum 0."""
    return tf.math.multiply_no_nan(tf.cast(mean, tf.float32), weight), weight


def _sum(tensor):
    return tf.reduce_sum(tf.cast(tensor, tf.float32))


def _num_rows(y_true, outputs):
    """Counts the rows of the targets if given, so that the number does not depend on what the stage computes."""
    tensors = [leaf for leaf in tf.nest.flatten((y_true, outputs)) if leaf is not None]
    return tf.cast(tf.shape(tensors[0])[0], tf.float32)


def _num_values(values, y_true):
    if not values.shape[1:].is_fully_defined():
        return tf.cast(tf.size(values), tf.float32)
    return _num_rows(y_true, values) * math.prod(values.shape[1:])


def _broadcast(weights, values):
    """Brings weights `[batch, ...]` to the shape of `values`, adding or dropping last dimensions of size 1."""
    weights = tf.cast(weights, values.dtype)
    while weights.shape.rank > values.shape.rank and weights.shape[-1] == 1:
        weights = tf.squeeze(weights, -1)
    while weights.shape.rank < values.shape.rank:
        weights = weights[..., tf.newaxis]
    return tf.broadcast_to(weights, _shape(values, tf.shape(weights)[0]))


def _shape(values, num_rows):
    """Reads as little of `values` as possible, so that sums of weights do not depend on what the stage computes."""
    sizes = values.shape[1:]
    return tf.stack([num_rows, *sizes]) if sizes.is_fully_defined() else tf.shape(values)
