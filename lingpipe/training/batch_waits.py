"""Waits for inputs and batches: each step counts and measures its wait, and a watching thread limits all waits."""

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from lingpipe.cluster import waits


class BatchWaits:
    """Takes batches from an iterator, and lets other threads see whether a step waits for one.

    ::

        count    0      1        2        3        4        odd while a step waits
                 │ wait │ step 0 │  wait  │ step 1 │ ...

    Attributes:
        seconds: `tf.Variable` float64, seconds of all waits so far.
        is_resumed: whether the input first has to seek its position, which may take any time.
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

    def limited(self) -> int | None:
        """Return the number of the current wait; None while no step waits, or the input seeks its position."""
        number = self.current()
        return None if number == 1 and self.is_resumed else number


def _now() -> tf.Tensor:
    """Return the time in seconds, by the clock of the host that reads the batches."""
    with tf.device('CPU:0'):
        return tf.timestamp()


def for_batch(source: str, seconds: float, position: Callable[[], Any],
              on_timeout: Callable[[str], Any] | None = None, is_urgent: Callable[[], bool] = bool) -> waits.Wait:
    """Return the scope of waits for an input's batches, limited by `train.input_timeout_seconds`; see `waits.Wait`."""
    return waits.Wait(f'a batch of {source}', seconds, f'train.input_timeout_seconds={seconds:g}', position=position,
                      on_timeout=on_timeout, is_urgent=is_urgent)
