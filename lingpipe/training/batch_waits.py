"""Waits for inputs and batches: each step counts and measures its wait, and a watching thread limits all waits."""

import contextlib
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

import tensorflow as tf

from lingpipe.cluster import waits
from lingpipe.input import base_input

_INPUT_AND_OUTPUT = '/proc/self/io'  # which only Linux has
_LONGEST_IDLE_SECONDS = 3600.
_SECONDS_OF_WORK, _BYTES_OF_WORK = 10, 2**16  # waiting threads need a tenth of this in an hour
_ONLY_IDLE_TIME = 'Only time without work counts.'


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
                for_seeking(data.source, seconds, lambda: self._current(seeks=True)):
            yield

    def _current(self, seeks: bool) -> int | None:
        """Return the number of the current wait if it includes seeking (without `seeks`: if it does not), else None."""
        number = self.current()
        return number if number is not None and seeks == (self.is_resumed and number == 1) else None


def _now() -> tf.Tensor:
    """Return the time in seconds, by the clock of the host that reads the batches."""
    with tf.device('CPU:0'):
        return tf.timestamp()


def for_batch(source: str, seconds: float, position: Callable[[], Any],
              on_timeout: Callable[[str], Any] | None = None, is_urgent: Callable[[], bool] = bool) -> waits.Wait:
    """Return the scope of waits for an input's batches, limited by `train.input_timeout_seconds`; see `waits.Wait`."""
    return waits.Wait(f'a batch of {source}', seconds, f'train.input_timeout_seconds={seconds:g}', position=position,
                      on_timeout=on_timeout, is_urgent=is_urgent)


def for_seeking(source: str, seconds: float, position: Callable[[], Any]) -> waits.Wait:
    """Return the scope of the wait for a resumed run's first batch; the run may read again all that it has seen.

    Only time without any work counts, and with `train.input_timeout_seconds=0` there is no limit.
    """
    idle_seconds = max(seconds, _LONGEST_IDLE_SECONDS) if seconds else 0
    return waits.Wait(f'{source} to read again what it has seen', idle_seconds, details=lambda: _ONLY_IDLE_TIME,
                      position=position, work=_work_of_process)


def each_batch(batches: Callable[[], Iterable],
               wait: Callable[[Callable[[], Any]], waits.Wait]) -> Generator[Any, None, None]:
    """Yield batches, each after a wait of its own; the wait for the first batch includes opening the input.

    Args:
        wait: function of a position that returns a `waits.Wait`, such as `for_batch` of an input.
    """
    count, is_awaited = 0, True
    with wait(lambda: count if is_awaited else None):
        for batch in batches():
            is_awaited = False
            yield batch
            count, is_awaited = count + 1, True


def for_input(source: str) -> waits.Wait:
    """Return the scope in which an input is built; this may take hours, but no hour may pass without work."""
    return waits.Wait(f'{source} to be ready', _LONGEST_IDLE_SECONDS, details=lambda: _ONLY_IDLE_TIME,
                      work=_work_of_process)


def _work_of_process() -> tuple[int, int]:
    """Return numbers that grow while this process computes or writes, but not by what its waiting threads do."""
    return int(time.process_time() / _SECONDS_OF_WORK), _bytes_written() // _BYTES_OF_WORK


def _bytes_written() -> int:
    try:
        with open(_INPUT_AND_OUTPUT) as file:
            return int(next(line for line in file if line.startswith('wchar:')).split()[1])
    except (OSError, StopIteration):
        return 0
