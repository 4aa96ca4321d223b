"""What a stage is told of the micro-batch that it works on, besides its contents."""

import tensorflow as tf

from lingpipe.distribute import device_kinds


class Positions:
    """Six numbers as one int64 tensor.

    Seed, step, number of the micro-batch in the mini-batch, rows that went through the stage before it, number of the replica,
    and number of the micro-batch in the replica.

    Each is a sum with a value known at run time only: were it a constant, TensorFlow would specialise and compile the
    functions of a stage once for every micro-batch.

    Args:
        seed_and_step: int64 tensor `[2]`.
        rows: list of the numbers of rows of the micro-batches, integers or scalar tensors.
        device: name of the device that computes the tensors, or whose host does.
        first: number of the first of these micro-batches in the mini-batch.
        replica: number of the replica.
    """

    def __init__(self, seed_and_step, rows, device, first=0, replica=0):
        self._rows, self._device = rows, device_kinds.for_single_operations(device)
        with tf.device(self._device):
            self._start = tf.concat([tf.cast(seed_and_step, tf.int64), tf.constant([first, 0, replica, 0], tf.int64)], 0)
        self._seen, self._tensors = {}, {}

    @property
    def zero(self):
        """A float32 scalar that is 0, of which TensorFlow does not know it."""
        with tf.device(self._device):
            return tf.cast(self._start[3], tf.float32)

    def enter(self, stage_index, micro_batch):
        """Notes that a micro-batch enters a stage.

        Args:
            stage_index: index of the stage.
            micro_batch: number of the micro-batch.

        Returns:
            int64 tensor `[6]`.
        """
        seen = self._seen.get(stage_index, ())
        self._seen[stage_index] = (*seen, micro_batch)
        if (micro_batch, seen) not in self._tensors:
            rows_before = sum(self._rows[earlier] for earlier in seen)
            with tf.device(self._device):
                self._tensors[micro_batch, seen] = self._start + tf.stack(
                    [0, 0, micro_batch, tf.cast(rows_before, tf.int64), 0, micro_batch])
        return self._tensors[micro_batch, seen]
