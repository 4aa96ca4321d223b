"""Statistics of batch norm from tick to tick of a shift register."""

import tensorflow as tf

from lingpipe.spmd import stage_map
from lingpipe.stages import batch_statistics


class TickStatistics:
    """Joins what the ticks tell about a mini-batch, for every stage on its core, in lists of at most one tensor.

    Only the forward loop joins: what the backward loop recomputes comes to nothing.
    """

    def __init__(self, statistics: batch_statistics.BatchStatistics, stages: stage_map.StageMap,
                 num_rounds: int) -> None:
        self._statistics, self._map, self._num_rounds = statistics, stages, num_rounds

    def before_first(self) -> list[tf.Tensor]:
        """Returns the list of one tensor `[3, K, V, channels]` that `joined` begins with."""
        spec = self._statistics.spec
        shape = [3, self._map.num_stages, self._num_rounds, spec.shape[1]]
        return [self._map.shard(tf.zeros(shape, spec.dtype), 1)] if self._statistics.norms else []

    def joined(self, before: list[tf.Tensor], new: list[tf.Tensor], rounds: tf.Tensor) -> list[tf.Tensor]:
        """Combines the statistics `[K, 3, channels]` of a tick with those of earlier ticks `[3, K, V, channels]`.

        Args:
            before: those of earlier ticks.
            new: those of the tick.
            rounds: int32 tensor `[K]`, the round of each core; -1: it has no micro-batch.
        """
        is_round = (tf.range(self._num_rounds) == rounds[:, tf.newaxis])[..., tf.newaxis]
        return [self._joined(*pair, is_round) for pair in zip(before, new)]

    def _joined(self, before, new, is_round):
        rows = tf.transpose(new, [1, 0, 2])[:, :, tf.newaxis]
        rows = tf.where(is_round, rows, tf.zeros([], rows.dtype))
        joined = self._map.shard(self._statistics.merge(before, rows), 1)
        return tf.stop_gradient(joined)  # not on the inputs: the loop would still keep all of them for its gradient
