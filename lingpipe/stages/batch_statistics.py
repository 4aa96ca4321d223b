"""Statistics of batch norms over the micro-batches of a batch."""

import functools
from collections.abc import Callable, Iterable

import keras
import numpy as np
import tensorflow as tf

from lingpipe.devices import collectives, device_kinds
from lingpipe.stages import stage_scope


class BatchStatistics:
    """Operations on the statistics of a stage's batch norms.

    Moving averages change only at the end of a batch. If the layers call a norm twice, its moving averages change
    twice then, as in Keras. One tensor holds the statistics of all calls::

        statistics  [[mean in call 0     | mean in call 1     | ...],
                     [variance in call 0 | variance in call 1 | ...],
                     [number of values   | number of values   | ...]]      [3, channels]
    """

    def __init__(self, norms: list[keras.layers.BatchNormalization]) -> None:
        self.norms = norms
        self._sizes = [int(norm.moving_mean.shape[0]) for norm in norms]

    @property
    def spec(self) -> tf.TensorSpec:
        """The `tf.TensorSpec` `[3, channels]` of the statistics."""
        return tf.TensorSpec([3, sum(self._sizes)], self._dtype)

    @property
    def _dtype(self) -> tf.DType:
        return keras.backend.result_type(*[norm.moving_mean.dtype for norm in self.norms], 'float32')

    def of_micro_batch(self, calls: list[stage_scope.NormCall]) -> tf.Tensor:
        """Return the statistics `[3, channels]` of a micro-batch. `calls` are in the order of `norms`."""
        if not calls:
            return tf.zeros(self.spec.shape, self._dtype)
        rows = zip(*[(call.mean, call.variance, call.count) for call in calls])
        return tf.stack([tf.concat([tf.cast(value, self._dtype) for value in row], 0) for row in rows])

    def merge(self, before: tf.Tensor, new: tf.Tensor) -> tf.Tensor:
        """Combine two tensors of statistics, as in section 2 of Chan, Golub, LeVeque 1979."""
        if not self.norms:
            return before
        count = before[2] + new[2]
        fraction = tf.math.divide_no_nan(new[2], count)
        kept, apart = 1.0 - fraction, new[0] - before[0]
        return tf.stack([before[0] + fraction * apart,
                         kept * before[1] + fraction * new[1] + kept * fraction * tf.square(apart), count])

    def updates(self, statistics: tf.Tensor, read: Callable[[keras.Variable], tf.Tensor],
                device: str, group: collectives.Group) -> list[tuple[keras.Variable, tf.Tensor]]:
        """Return the moving averages as pairs (variable, new value).

        Args:
            statistics: tensor `[3, channels]` for this replica's share of the batch.
        """
        variables = list({id(variable): variable for norm in self.norms
                          for variable in (norm.moving_mean, norm.moving_variance)}.values())
        if not variables:
            return []
        with tf.device(device):
            averages = [read(variable) for variable in variables]
            if group.count > 1:
                statistics = of_all_replicas(statistics, functools.partial(group.sum, device))
        step = functools.partial(self._step, variables)
        return list(zip(variables, device_kinds.call(device, step, averages, statistics)))

    def _step(self, variables: list[keras.Variable], averages: list[tf.Tensor],
              statistics: tf.Tensor) -> list[tf.Tensor]:
        values, parts = dict(zip(map(id, variables), averages)), tf.split(statistics[:2], self._sizes, axis=1)
        for places in self._rounds():
            norms, sizes = [self.norms[place] for place in places], [self._sizes[place] for place in places]
            momentum = tf.constant(np.repeat([norm.momentum for norm in norms], sizes), self._dtype)
            before = tf.stack([tf.concat([tf.cast(values[id(getattr(norm, name))], self._dtype) for norm in norms], 0)
                               for name in ('moving_mean', 'moving_variance')])
            new = momentum * before + (1.0 - momentum) * tf.concat([parts[place] for place in places], 1)
            for norm, pair in zip(norms, tf.split(new, sizes, axis=1)):
                for variable, value in zip((norm.moving_mean, norm.moving_variance), tf.unstack(pair)):
                    values[id(variable)] = tf.cast(value, variable.dtype)
        return [values[id(variable)] for variable in variables]

    def _rounds(self) -> list:
        """Return lists of indices into `norms`, with each norm at most once per list."""
        rounds, seen = [], {}
        for place, norm in enumerate(self.norms):
            number = seen[id(norm)] = seen.get(id(norm), -1) + 1
            rounds += [[]] if number == len(rounds) else []
            rounds[number].append(place)
        return rounds


def of_all_replicas(statistics: tf.Tensor, total: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
    """Combine the statistics `[3, channels]` of all replicas. `total` sums a tensor over all replicas."""
    mean, variance, count = tf.unstack(statistics)
    whole = total(count)
    center = tf.math.divide_no_nan(total(count * mean), whole)
    squares = total(count * (variance + tf.square(mean - center)))  # law of total variance
    return tf.stack([center, tf.math.divide_no_nan(squares, whole), whole])


def batch_norms(layers: Iterable[keras.layers.Layer]) -> list[keras.layers.BatchNormalization]:
    """Return the batch norms in `layers`, except norms with `renorm`."""
    sublayers = [sublayer for layer in layers for sublayer in layer._flatten_layers()]
    return list({id(layer): layer for layer in sublayers
                 if isinstance(layer, keras.layers.BatchNormalization)
                 and not getattr(layer, 'renorm', False)}.values())  # with it, averages change in every micro-batch
