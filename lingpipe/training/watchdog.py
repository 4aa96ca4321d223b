"""Time limits for the steps of a training run, and for its waits for batches."""

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from lingpipe.cluster import answers, cluster_config, waits

_FIRST_CALL_FACTOR = 10  # the first call of a kind traces and compiles


class Watchdog:
    """Time limit of steps. The process ends if a step takes too long.

    Args:
        seconds: how long a step may take; 0: any time. The first step may take ten times as long.
        config: `ClusterConfig`, to name the peers that do not answer; None: this process is alone.
        needed_job: 'worker' or 'ps'. Training needs all processes of this job. None: no job.
        is_worker_back: function that returns whether a lost worker answers again.
    """

    def __init__(self, seconds: float = 0, config: cluster_config.ClusterConfig | None = None,
                 needed_job: str | None = None, is_worker_back: Callable[[], bool] = bool) -> None:
        self.seconds, self.is_worker_back = seconds, is_worker_back
        self._config, self._needed_job = config, needed_job
        self._known_kinds: set[str] = set()
        self._num_beats = 0

    def listen(self, ask_to_stop: Callable[[str], Any]) -> None:
        """Let another thread call `ask_to_stop(reason)` when a process of `needed_job` gets a stop signal."""
        if self._config and self._needed_job:
            answers.listen(self._config, self._needed_job, lambda task: ask_to_stop(f'a signal to {task}'))

    @contextlib.contextmanager
    def watch(self, kind: str = 'step', progress: Callable[[], Any] = int) -> Iterator[None]:
        """Limit the time of each step inside this scope. `beat` restarts the clock.

        Args:
            progress: function whose result changes with each step. While the result is None, no limit applies.
                Another thread calls this function.
        """
        def position() -> tuple[Any, int] | None:
            now = progress()
            return None if now is None else (now, self._num_beats)

        is_first = kind not in self._known_kinds
        limit = self.seconds * (_FIRST_CALL_FACTOR if is_first else 1)
        with waits.Wait(f'{"the first" if is_first else "a"} {kind} to end', limit,
                        f'--step_timeout_seconds={self.seconds:g}', self.silence_in_words, position,
                        first_warning_seconds=math.inf) if limit else contextlib.nullcontext():
            yield
        self._known_kinds.add(kind)

    def beat(self) -> None:
        """Restart the time limit."""
        self._num_beats += 1

    def silence_in_words(self) -> str:
        """Return a sentence that says which peers do not answer; '' without peers."""
        return answers.silence_in_words(self._config) if self._config else ''


class BatchWaits:
    """Counter of the waits for batches. Any thread can see whether a step waits for a batch.

    ::

        count    0      1        2        3        4        odd while a step waits
                 │ wait │ step 0 │  wait  │ step 1 │ ...

    Attributes:
        seconds: `tf.Variable` float64, seconds of all waits so far.
        is_resumed: whether the input begins in the middle of the data. The first wait then has no time limit.
    """

    def __init__(self) -> None:
        with tf.device('CPU:0'):
            self._count = tf.Variable(0, dtype=tf.int64, trainable=False, name='batch_waits')
            self.seconds = tf.Variable(0, dtype=tf.float64, trainable=False, name='input_seconds')
        self.is_resumed = False

    def next_batch(self, iterator: Iterator[tuple]) -> tuple:
        """Return the next batch, and record how long the step waits."""
        with tf.control_dependencies([self._count.assign_add(1)]):
            begin = _now()
        with tf.control_dependencies([begin]):
            batch = next(iterator)
        with tf.control_dependencies(tf.nest.flatten(batch)):
            self._count.assign_add(1)
            self.seconds.assign_add(_now() - begin)
        return batch

    def count_step(self) -> None:
        """Change `position()`, because a worker has finished a step."""
        self._count.assign_add(2)

    def current(self) -> int | None:
        """Return the number of the current wait, or None while no step waits."""
        count = int(self._count)
        return count if count % 2 else None

    def position(self) -> int | None:
        """Return a number that changes with each step, or None while a step waits for a batch."""
        count = int(self._count)
        return None if count % 2 else count

    def limited(self) -> int | None:
        """Return `current()`, or None during a wait without a time limit."""
        number = self.current()
        return None if number == 1 and self.is_resumed else number


def _now() -> tf.Tensor:
    """Return the time in seconds, by the clock of the host."""
    with tf.device('CPU:0'):
        return tf.timestamp()


def for_batch(source: str, seconds: float, position: Callable[[], Any],
              on_timeout: Callable[[str], Any] | None = None, is_urgent: Callable[[], bool] = bool) -> waits.Wait:
    """Return a `waits.Wait` that limits the time to read a batch. `seconds` is `train.input_timeout_seconds`."""
    return waits.Wait(f'a batch of {source}', seconds, f'train.input_timeout_seconds={seconds:g}', position=position,
                      on_timeout=on_timeout, is_urgent=is_urgent)
