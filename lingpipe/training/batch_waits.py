"""Waits of training steps for their batches: counted, timed, and limited by a watching thread."""

import contextlib
from collections.abc import Callable, Iterator

import tensorflow as tf

from lingpipe.cluster import waits
from lingpipe.input import base_input


class BatchWaits:
    """Takes batches from an iterator, and lets other threads see whether a step waits for one.

    ::

        count    0      1        2        3        4        odd while a step waits
                 │ wait │ step 0 │  wait  │ step 1 │ ...

    Attributes:
        seconds: `tf.Variable` float64, seconds of all waits so far.
        is_resumed: whether the input first has to seek its position, for which other limits hold.
    """

    def __init__(self) -> None:
        with tf.device('CPU:0'):
            self._count = tf.Variable(0, dtype=tf.int64, trainable=False, name='batch_waits')
            self.seconds = tf.Variable(0, dtype=tf.float64, trainable=False, name='input_seconds')
        self.is_resumed = False

    def next_batch(self, iterator: Iterator[tuple]) -> tuple:
        """Return the next batch, inside a `tf.function` or outside; count the wait and its seconds."""
        with tf.control_dependencies([self._count.assign_add(1)]):
            begin = _now()
        with tf.control_dependencies([begin]):
            batch = next(iterator)
        with tf.control_dependencies(tf.nest.flatten(batch)):
            self._count.assign_add(1)
            self.seconds.assign_add(_now() - begin)
        return batch

    def count_step(self) -> None:
        """Count a step whose batch another process has taken."""
        self._count.assign_add(2)

    def current(self) -> int | None:
        """Return the number of the current wait; None while no step waits. Any thread may ask."""
        count = int(self._count)
        return count if count % 2 else None

    def position(self) -> int | None:
        """Return a number that changes with each step; None while a step waits. Any thread may ask."""
        count = int(self._count)
        return None if count % 2 else count

    @contextlib.contextmanager
    def watching(self, data: base_input.BaseInput, seconds: float, wait: Callable[..., waits.Wait]) -> Iterator[None]:
        """In this scope the process ends with a message if the input gives no batch within some seconds."""
        with wait(data.source, seconds, lambda: self._current(seeks=False)), \
                waits.for_seeking(data.source, seconds, lambda: self._current(seeks=True)):
            yield

    def _current(self, seeks: bool) -> int | None:
        """Return the number of the current wait if the input has to seek for it (or not, by `seeks`), else None."""
        number = self.current()
        return number if number is not None and seeks == (self.is_resumed and number == 1) else None


def _now() -> tf.Tensor:
    """Return the time in seconds, by the clock of the host that reads the batches."""
    with tf.device('CPU:0'):
        return tf.timestamp()
