"""What a stage is told of the micro-batch that it works on, besides its contents."""

import tensorflow as tf

from lingpipe.devices import device_kinds


class Positions:
    """Six numbers as one int64 tensor.

    Seed, step, number of the micro-batch in the mini-batch, its number of rows, number of the replica, and number of the
    micro-batch in the replica.

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
        self._tensors = {}

    @property
    def zero(self):
        """A float32 scalar that is 0, of which TensorFlow does not know it."""
        with tf.device(self._device):
            return tf.cast(self._start[3], tf.float32)

    def of(self, micro_batch):
        """Returns the int64 tensor `[6]` of a micro-batch, given by its number in the replica."""
        if micro_batch not in self._tensors:
            rows = tf.cast(self._rows[micro_batch], tf.int64)
            with tf.device(self._device):
                self._tensors[micro_batch] = self._start + tf.stack([0, 0, micro_batch, rows, 0, micro_batch])
        return self._tensors[micro_batch]
