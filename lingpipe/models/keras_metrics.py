"""Keras metrics, computed per micro-batch. The results are the same as for the whole batch."""

import concurrent.futures
import re
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from lingpipe import hyperparams
from lingpipe.layers import keras_params
from lingpipe.stages import losses

_PARTS = slice(2), slice(2, 5)
_NUM_ROWS, _NUM_COUNTED = 5, 3
_ADVICE = 'Write it as KerasParams(keras.metrics.SparseTopKCategoricalAccuracy, k=5), for instance.'


def make_states(metrics: list, arguments: Callable) -> dict[str, 'MetricState']:
    """Return the `MetricState` of each metric, by name.

    Args:
        metrics: list of Params of Keras metrics.
        arguments: function `(targets, outputs) -> (y_true, y_pred, sample_weight)`; all results are `[batch, ...]`.

    Raises:
        ValueError: an entry is not a metric, or two metrics have the same name.
    """
    states: dict[str, MetricState] = {}
    for index, params in enumerate(metrics):
        keras_params.require(params, keras.metrics.Metric, f'metrics[{index}]', _ADVICE)
        name = _name(params)
        if name in states:
            raise ValueError(f'metrics[{index}] is called {name!r}, as a metric before it is. Give it another name, as '
                             f'by KerasParams({params.cls.__name__}, name=...).')
        states[name] = MetricState(params.Copy().Set(name=name), arguments)
    return states


def _name(params):
    """Return the name of a metric without the number that Keras appends."""
    if params.cls is OfClasses and not params.name:
        return _name(params.metric)
    # 'auc', not 'auc_1'
    return params.name or re.sub('(?<=[a-z0-9])(?=[A-Z])', '_', params.cls.__name__).lower()


class MetricState:
    """A Keras metric whose variables are summed over micro-batches.

    The variables of most metrics are counts or sums, and they add up over micro-batches::

        micro-batch 0 ─> update_state from zeros ─> true positives, false positives ─┐
        micro-batch 1 ─> update_state from zeros ─> true positives, false positives ─┴─> sums ─> result

    A trial on random examples checks that the variables add up. For `arguments`, see `make_states`.
    """

    def __init__(self, params: hyperparams.InstantiableParams, arguments: Callable) -> None:
        self._params, self._arguments = params, arguments
        self._metric: Any = None

    def share(self, targets: Any, outputs: Any) -> tuple[tf.Tensor, ...]:
        """Return the amounts, in float32, that a micro-batch adds to the variables of the metric.

        Raises:
            ValueError: the metric does not take these tensors, or cannot be computed in parts.
        """
        y_true, y_pred, weights = map(losses.in_float32, self._arguments(targets, outputs))
        if self._metric is None:
            specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in (y_true, y_pred, weights)]
            with concurrent.futures.ThreadPoolExecutor(1) as thread:  # without a graph, tape or scope of the caller
                self._metric = thread.submit(_made, self._params, specs).result()
        state = self._metric.stateless_update_state(_zeros(self._metric), y_true, y_pred, sample_weight=weights)
        return tuple(tf.cast(part, tf.float32) for part in state)

    @property
    def is_larger_better(self) -> bool | None:
        """Whether a larger value is better, or None if unknown. Call `share` before you read this property."""
        return {'up': True, 'down': False}.get(getattr(self._metric, '_direction', ''))

    def result(self, *sums: tf.Tensor) -> tf.Tensor:
        """Return the metric, a float32 scalar. `sums` has each variable's sum over the micro-batches."""
        values = [tf.cast(total, variable.dtype) for total, variable in zip(sums, self._metric.variables)]
        return tf.cast(self._metric.stateless_result(values), tf.float32)


def _random_examples(y_true, outputs, weights):
    """Return random arrays of labels, outputs and weights, given a TensorSpec for each."""
    random = np.random.default_rng(0)
    num_classes = max(2, outputs.shape[-1] or 2)

    def array(spec, draw):
        return draw([_NUM_ROWS, *[size or 3 for size in spec.shape[1:]]]).astype(spec.dtype.as_numpy_dtype)

    def values(shape):
        return random.uniform(0.05, 0.95, shape)

    def classes(shape):
        return random.integers(0, num_classes, shape)

    examples = [array(spec, values if spec.dtype.is_floating else classes) for spec in (y_true, outputs)]
    # Weights are at least 1, because some metrics truncate weights.
    return [*examples, array(weights, lambda shape: np.random.default_rng(1).uniform(1.0, 2.0, shape))]


def _made(params, specs):
    """Make a metric, and check the metric on random examples."""
    name = f'{params.name!r} ({params.cls.__name__}) of task.metrics'
    with tf.device('CPU:0'):
        try:
            metric = params.Instantiate()
            trial = _Trial(metric, _random_examples(*specs))
        except Exception as error:
            raise ValueError(
                f'The metric {name} cannot be computed of labels {_text(specs[0])}, outputs {_text(specs[1])} and '
                f'weights {_text(specs[2])}: {error}. Choose a metric that takes them. For one that wants one-hot '
                'labels and probabilities, where labels are class numbers and outputs are logits, write '
                'KerasParams(OfClasses, metric=...) of lingpipe.models.keras_metrics.') from error
    trial.check(name)
    return metric


def _text(spec):
    return f'{spec.dtype.name} {list(spec.shape)}'


class _Trial:
    """A metric's variables and result for a few examples, computed from one batch and from two smaller batches."""

    def __init__(self, metric, examples):
        metric.update_state(*examples)  # eagerly, since some metrics make their variables only now
        self._whole = [*[variable.numpy() for variable in metric.variables], metric.result()]
        metric.reset_state()

        def state(rows, weights):
            y_true, y_pred = examples[0][rows], examples[1][rows]
            found = metric.stateless_update_state(_zeros(metric), y_true, y_pred, sample_weight=weights)
            return [np.asarray(part) for part in found]

        @tf.function(autograph=False)  # as in a training step; some metrics cannot be computed in a graph
        def number(state):
            return metric.stateless_result(state)

        weights, counted = examples[2], slice(_NUM_COUNTED)
        sums = [sum(each) for each in zip(*[state(rows, weights[rows]) for rows in _PARTS])]
        self._of_parts = [*sums, number(sums)]
        few = weights.copy()
        few[_NUM_COUNTED:] = 0
        self._of_some = [number(state(counted, weights[counted]))]
        self._others_weigh_nothing = [number(state(slice(None), few))]

    def check(self, name):
        """Raise ValueError if the results show that the metric cannot be used."""
        result = self._whole[-1]
        if isinstance(result, dict) or np.ndim(result):
            returned = _text(result) if tf.is_tensor(result) else type(result).__name__
            raise ValueError(f'The metric {name} returns {returned}, but a curve shows one number. Set its arguments '
                             "so that it returns one, as by average='macro'.")
        if not _are_close(self._whole, self._of_parts):
            raise ValueError(
                f'The metric {name} has variables that do not add up over the parts of a batch, so it cannot be '
                'computed over micro-batches, replicas and workers. Choose another metric, or compute this one from '
                'the predictions of the exported model.')
        if not _are_close(self._of_some, self._others_weigh_nothing):
            raise ValueError(
                f'The metric {name} counts examples of weight 0 too, with which the last batch of a dataset is filled. '
                'Choose a metric that uses sample_weight.')


def _zeros(metric):
    return [tf.zeros(variable.shape, variable.dtype) for variable in metric.variables]


def _are_close(some, others):
    """Return whether arrays are equal up to rounding."""
    pairs = [(np.asarray(one), np.asarray(other)) for one, other in zip(some, others)]
    return all(one.shape == other.shape and np.allclose(
        one, other, rtol=1e-4, atol=1e-5 * np.abs(other).max(initial=1.0)) for one, other in pairs)


@keras.saving.register_keras_serializable(package='lingpipe')
class OfClasses(keras.metrics.Metric):
    """A wrapper that converts class numbers and logits to one-hot labels and probabilities for another Keras metric.

    Logits `[..., classes]` get a softmax. Logits `[..., 1]` get a sigmoid. Keras's AUC, Precision, Recall and F1Score
    need this conversion.

    Args:
        metric: the `keras.metrics.Metric`, or its params in KerasParams.
        class_id: number of the positive class, compared with all others; None: `metric` gets all classes.
        name: name of this metric; None: the name of `metric`.
    """

    def __init__(self, metric: keras.metrics.Metric, class_id: int | None = None, name: str | None = None,
                 dtype: str | None = None) -> None:
        super().__init__(name=name or metric.name, dtype=dtype)
        self.metric, self.class_id = metric, class_id
        self._direction = getattr(metric, '_direction', None)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Add a batch of integer labels `[...]`, or `[..., 1]`, and logits `[..., classes]`."""
        num_classes = y_pred.shape[-1]
        labels = keras.ops.cast(y_true, 'int32')
        if len(labels.shape) == len(y_pred.shape):
            labels = keras.ops.squeeze(labels, -1)
        labels, probabilities = _one_hot(labels, y_pred, num_classes)
        if self.class_id is not None:
            wanted = slice(self.class_id, self.class_id + 1)
            labels, probabilities = labels[..., wanted], probabilities[..., wanted]
        self.metric.update_state(labels, probabilities, sample_weight=sample_weight)

    def result(self) -> tf.Tensor:
        """Return the value of the metric."""
        return self.metric.result()

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), 'metric': self.metric, 'class_id': self.class_id}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> 'OfClasses':
        return cls(**{**config, 'metric': keras.saving.deserialize_keras_object(config['metric'])})


def _one_hot(labels, logits, num_classes):
    if num_classes == 1:
        return labels[..., None], keras.ops.sigmoid(logits)
    return keras.ops.one_hot(labels, num_classes), keras.ops.softmax(logits, -1)
