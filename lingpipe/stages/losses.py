"""Losses as pairs (sum, weight), which can be added over micro-batches."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from lingpipe.stages import loss_kinds

_PLAIN = (str, int, float, bool)
_MEANS = ('sum_over_batch_size', 'mean', 'mean_with_sample_weight')


class LossAndStates:
    """A loss function for the pipeline, and metrics that are not simply sum / weight.

    Args:
        loss_fn: see `as_metrics`. Sample weights are not supported.
        states: dictionary from name to an object for a metric, such as a `keras_metrics.MetricState`. The method
            `share(y_true, outputs)` returns a tuple of sums over the examples of a micro-batch. The method
            `result(*sums)` takes the sums over all micro-batches, and returns the metric as a float32 scalar.
    """

    def __init__(self, loss_fn: Callable, states: Mapping[str, Any]) -> None:
        self._metrics, self._states = as_metrics(loss_fn), states
        self.results = {name: state.result for name, state in states.items()}

    def __call__(self, y_true: Any, outputs: Any) -> dict[str, tuple[tf.Tensor, ...]]:
        """Return the sums of all metrics for a micro-batch, as {name: tuple of tensors}."""
        metrics = self._metrics(y_true, outputs)
        taken = sorted(metrics.keys() & self._states.keys())
        if taken:
            raise ValueError(f'{taken[0]!r} is the name of two metrics, one of which the loss function itself returns. '
                             'Give the other one another name, as by KerasParams(..., name=...).')
        return {**metrics, **{name: state.share(y_true, outputs) for name, state in self._states.items()}}


def results_of(loss_fn: Callable) -> dict[str, Callable]:
    """For a `LossAndStates`, return the `result` method of each state, by name. For any other loss, return {}."""
    return loss_fn.results if isinstance(loss_fn, LossAndStates) else {}


class WeightUnknownError(ValueError):
    """The error for a loss whose weight cannot be computed before the last stage runs."""


def as_metrics(loss_fn: Callable) -> Callable[..., dict[str, tuple[tf.Tensor, tf.Tensor]]]:
    """Wrap a loss function for the last stage.

    Args:
        loss_fn: a Keras loss, a `LossAndStates` or a function `(y_true, outputs)`. The function returns losses
            `[batch, ...]` or the mean over the examples. As in Lingvo, the function may instead return a
            dictionary {name: (mean, weight)} with the entry 'loss'.

    Returns:
        Function `(y_true, outputs, sample_weight) -> {name: (sum, weight)}`. This function raises ValueError if the
        loss cannot be computed over micro-batches. If `loss_fn` returns a dictionary, this is not checked.
    """
    if isinstance(loss_fn, LossAndStates):
        return loss_fn
    if isinstance(loss_fn, keras.losses.Loss) and loss_fn.reduction not in (None, 'none'):
        return _of_keras(loss_fn)

    def metrics(y_true: Any, outputs: Any, sample_weight: Any = None) -> dict:
        outputs = tf.nest.map_structure(in_float32, outputs)
        result = loss_fn(y_true, outputs)
        if isinstance(result, dict):
            return _named_means(result, sample_weight)
        _require_additive(loss_fn, y_true, outputs, sample_weight)
        result = tf.convert_to_tensor(result)
        if result.shape.rank == 0:
            _refuse_weights(sample_weight, 'a scalar')
            return {'loss': _sum_and_weight(result, _num_rows(y_true, outputs))}
        result = in_full_precision(result)
        if sample_weight is None:
            return {'loss': (_sum(result), _num_values(result, y_true))}
        weights = _broadcast(sample_weight, result)
        return {'loss': (_sum(result * weights), _sum(weights))}

    return metrics


def _of_keras(loss: keras.losses.Loss) -> Callable:
    if loss.reduction not in _MEANS:
        raise ValueError(f"The loss {type(loss).__name__} has reduction={loss.reduction!r}, but the loss of a pipeline "
                         "is a mean over the batch. Set reduction='sum_over_batch_size', or compile a PipelineModel.")
    mean = KerasMean(loss)

    def metrics(y_true: Any, outputs: Any, sample_weight: Any = None) -> dict:
        _require_additive(loss, y_true, outputs, sample_weight)
        return mean(y_true, outputs, sample_weight)

    return metrics


def fractions_of(num_rows: tf.Tensor) -> tf.Tensor:
    """Return a tensor `[num_rows]` filled with 1 / `num_rows`, in float32 or float64."""
    rows = tf.cast(num_rows, keras.backend.result_type(keras.backend.floatx(), 'float32'))
    return tf.fill([num_rows], tf.math.divide_no_nan(tf.ones([], rows.dtype), rows))


def identity(loss_fn: Callable) -> Any:
    """Return a hashable key of a loss. Keras losses of one class with equal plain settings have equal keys."""
    is_from_keras = isinstance(loss_fn, keras.losses.Loss) and type(loss_fn).__module__.startswith('keras.')
    settings = {**vars(loss_fn), **vars(loss_fn).get('_fn_kwargs', {})} if is_from_keras else {}
    settings = {name: getattr(value, 'name', value) for name, value in settings.items() if name != '_fn_kwargs'}
    if settings and all(value is None or callable(value) or isinstance(value, _PLAIN) for value in settings.values()):
        return type(loss_fn), *sorted(settings.items())
    return loss_fn


def in_full_precision(tensor: Any) -> tf.Tensor:
    """Cast a tensor to float32, unless it is float64."""
    return tf.cast(tensor, keras.backend.result_type(tf.as_dtype(tensor.dtype).name, 'float32'))


def in_one_precision(tensors: list) -> list[tf.Tensor]:
    """Cast tensors to the widest of their types, but at least to float32."""
    dtype = keras.backend.result_type(*[tf.as_dtype(tensor.dtype).name for tensor in tensors], 'float32')
    return [tf.cast(tensor, dtype) for tensor in tensors]


def add_up(scalars: list) -> tf.Tensor:
    """Return the sum of scalars in the widest of their types. An empty list gives 0 in float32."""
    return tf.add_n(in_one_precision(scalars)) if scalars else tf.zeros([])


def in_float32(output: Any) -> tf.Tensor:
    """Cast a half-precision tensor to float32, and keep its Keras mask. Return other tensors and None unchanged."""
    if output is None or output.dtype not in (tf.bfloat16, tf.float16):
        return output
    cast = tf.cast(output, tf.float32)
    if getattr(output, '_keras_mask', None) is not None:
        cast._keras_mask = output._keras_mask
    return cast


def _require_additive(loss_fn: Callable, y_true: Any, outputs: Any, sample_weight: Any) -> None:
    """Raise ValueError if a loss over micro-batches may differ from the loss over the batch."""
    name = loss_kinds.name_of(loss_fn)
    try:
        kind = loss_kinds.of_loss(loss_fn, y_true, outputs)
        if kind is not loss_kinds.Kind.ROWS and sample_weight is not None:
            raise loss_kinds.NotAdditive(f'The loss {name!r} returns {kind.value}, to which sample_weight cannot be '
                                         'applied')
        if kind is not loss_kinds.Kind.ROWS and isinstance(loss_fn, keras.losses.Loss):
            loss_kinds.refuse_mask(name, outputs)
        if kind is loss_kinds.Kind.SUM:
            raise loss_kinds.NotAdditive(f'The loss {name!r} returns {kind.value}, not the mean')
    except loss_kinds.NotAdditive as error:
        raise ValueError(
            f'{error}, so that it cannot be computed over micro-batches. Return the loss of each example, or '
            "{'loss': (mean, weight)} with the weight of the mean, or compute the loss outside of the pipeline. To "
            'Keras, outputs of shape [batch] are one example: give them and the targets a last dimension of size 1.'
        ) from error


class KerasMean:
    """A Keras loss, computed as a sum and a divisor. The kind of the loss is `Kind.ROWS` or `Kind.MEAN`."""

    has_own_weights = False  # whether, in the last call, masks or sample weights were the divisor

    def __init__(self, loss: keras.losses.Loss) -> None:
        self._averages_weights = loss.reduction == 'mean_with_sample_weight'
        self._loss = shallow_copy(loss)
        self._loss.reduction = None
        self._call, self._loss.call = loss.call, self._call_and_keep_mask

    def __call__(self, y_true: Any, outputs: Any, sample_weight: Any = None) -> dict:
        values = in_full_precision(self._loss(y_true, outputs))
        if values.shape.rank == 0 and sample_weight is None:
            return {'loss': _sum_and_weight(values, _num_rows(y_true, outputs))}
        if sample_weight is not None:
            values *= _broadcast(sample_weight, values)
        weights = [getattr(outputs, '_keras_mask', None), self._mask, sample_weight if self._averages_weights else None]
        weights = [self._as_divisor(weight, values) for weight in weights if weight is not None]
        self.has_own_weights = bool(weights)
        return {'loss': (_sum(values), _sum(math.prod(weights)) if weights else _num_values(values, y_true))}

    def _as_divisor(self, weights: tf.Tensor, values: Any) -> tf.Tensor:
        """Broadcast `weights` to the shape of `values`."""
        is_whole = self._averages_weights and weights.shape.rank == values.shape.rank  # Keras does not broadcast then
        return tf.cast(weights, values.dtype) if is_whole else _broadcast(weights, values)

    def _call_and_keep_mask(self, y_true: Any, outputs: Any) -> Any:
        """Call the loss, and store the Keras mask of its result in `_mask`."""
        values = self._call(y_true, outputs)
        self._mask = getattr(values, '_keras_mask', None)  # a loss may mask examples, as with `ignore_class`
        return values


def shallow_copy(keras_object: Any) -> Any:
    """Return a copy with the same attributes."""
    copied = object.__new__(type(keras_object))  # copy.copy would save and load it, which may fail
    vars(copied).update(vars(keras_object))
    return copied


def means(sums: dict[str, tuple[tf.Tensor, ...]], results: dict[str, Callable] | None = None) -> dict[str, tf.Tensor]:
    """Compute metrics from their sums.

    Args:
        sums: dictionary {name: tuple of sums}. The tuple is (sum, weight) if the name is not in `results`.
        results: dictionary {name: function that takes the sums and returns the metric}, from `results_of`.
    """
    results = results or {}
    return {name: results.get(name, tf.math.divide_no_nan)(*parts) for name, parts in sums.items()}


def with_added(metrics: dict[str, tuple[tf.Tensor, tf.Tensor]], added: list) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
    """Add the losses of layers to the metric 'loss'. See `means_of_added`."""
    if not added:
        return metrics
    total, weight = metrics['loss']
    mean = add_up([*means_of_added(added), tf.zeros([], total.dtype)])
    total, weight = tf.cast(total, mean.dtype), tf.cast(weight, mean.dtype)
    return {**metrics, 'loss': (total + weight * mean, weight)}


def means_of_added(added: list) -> list[tf.Tensor]:
    """Return sum / rows for each pair in `added`: (sum of a stage's added losses, number of rows)."""
    return [tf.math.divide_no_nan(total, rows) for total, rows in added]


def _named_means(result: Any, sample_weight: Any) -> dict:
    if 'loss' not in result:
        raise ValueError(f"The loss function returned {sorted(result)}: it must return an entry 'loss'. Add it.")
    _refuse_weights(sample_weight, 'means with weights of its own')
    return {name: _sum_and_weight(tf.convert_to_tensor(mean), weight) for name, (mean, weight) in result.items()}


def _refuse_weights(sample_weight: Any, returned: Any) -> None:
    if sample_weight is not None:
        raise ValueError(
            f'sample_weight was given, but the loss function returns {returned}, to which it cannot be applied. '
            'Return a loss for each example.')


def _sum_and_weight(mean: Any, weight: tf.Tensor) -> tuple:
    mean = in_full_precision(mean)
    weight = tf.cast(weight, mean.dtype)
    return tf.math.multiply_no_nan(mean, weight), weight  # an empty micro-batch has no mean; its sum is 0


def _sum(tensor: Any) -> tf.Tensor:
    return tf.reduce_sum(in_full_precision(tensor))


def _num_rows(y_true: Any, outputs: Any) -> tf.Tensor:
    """Return the number of rows of a micro-batch."""
    tensors = [leaf for leaf in tf.nest.flatten((y_true, outputs)) if leaf is not None]
    return tf.shape(tensors[0])[0]  # of targets if possible: a loss's weight must not depend on outputs


def _num_values(values: Any, y_true: Any) -> tf.Tensor:
    if not values.shape[1:].is_fully_defined():
        return tf.cast(tf.size(values), values.dtype)
    return tf.cast(_num_rows(y_true, values), values.dtype) * math.prod(values.shape[1:])


def _broadcast(weights: tf.Tensor, values: Any) -> tf.Tensor:
    """Broadcast weights `[batch, ...]` to the shape of `values`."""
    weights = tf.cast(weights, values.dtype)
    while weights.shape.rank > values.shape.rank and weights.shape[-1] == 1:
        weights = tf.squeeze(weights, -1)
    while weights.shape.rank < values.shape.rank:
        weights = weights[..., tf.newaxis]
    # the shape of `values`, if possible without their tensor: weights must not depend on a stage's results
    sizes, num_rows = values.shape[1:], tf.shape(weights)[0]
    shape = tf.stack([num_rows, *sizes]) if sizes.is_fully_defined() else tf.shape(values)
    return tf.broadcast_to(weights, shape)
