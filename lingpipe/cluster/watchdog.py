"""Detecting steps that hang and machines that are about to be preempted, neither of which raises an error.

    with watchdog.Watchdog(seconds=600, config=config) as dog:
        while ...:
            with dog.watch(progress=program.position):     # the process ends when the position stays too long
                program.train(num_steps)
            checkpoint, evaluate            # no limit
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Self

import tensorflow as tf

from lingpipe.cluster import cluster_config, messages, waits

SECONDS_TO_CONNECT = 300
_SECONDS = 5
_LOOKS = 8  # for progress, in the time that a step may take
_SECONDS_BETWEEN_LOOKS = 1.


def find_silent_tasks(config: cluster_config.ClusterConfig, seconds: float = _SECONDS) -> list[str]:
    """Asks all other tasks whether they answer, all at once.

    Args:
        config: `ClusterConfig` of this process.
        seconds: how long to wait.

    Returns:
        List of the tasks that do not answer, such as 'worker:1'.
    """
    others = _others(config)
    answers: dict[tuple[str, int], bool] = {}
    threads = [threading.Thread(target=_ask, args=(config, *task, seconds, answers), daemon=True) for task in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + 1)
    return [f'{job}:{index}' for job, index in others if not answers.get((job, index))]


def _others(config):
    return [task for task in config.tasks('chief', 'worker', 'ps') if task != (config.task_type, config.task_index)]


def silence_in_words(config: cluster_config.ClusterConfig) -> str:
    """Returns a sentence that says which other tasks do not answer.

    Args:
        config: `ClusterConfig` of this process.
    """
    silent = find_silent_tasks(config)
    return f'No answer came from {", ".join(silent)}.' if silent else 'All other tasks answer.'


def _ask(config, job, index, seconds, answers):
    device = f'/job:{job}/task:{index}'
    settings = tf.compat.v1.ConfigProto(device_filters=[device], operation_timeout_in_ms=int(1000 * seconds))
    target = f'grpc://{config.jobs[job][index]}'
    try:
        with tf.Graph().as_default(), tf.device(f'{device}/device:CPU:0'):
            one = tf.random.uniform([])  # a constant would be computed here
            with tf.compat.v1.Session(target, config=settings) as session:
                session.run(one)
                answers[job, index] = True
    except tf.errors.OpError:
        answers[job, index] = False


def missing_workers(names: str, num_workers: int, seconds: float) -> ConnectionError:
    """Returns an error that names workers that cannot be reached.

    Args:
        names: their names and addresses.
        num_workers: number of all workers.
        seconds: how long they were waited for.
    """
    return ConnectionError(
        f'After {seconds:.0f} s there is no answer from {names}, of {num_workers} workers. Check that each is running '
        'the same command with its own task, that the addresses are right, and that no firewall blocks them.')


def connecting(config: cluster_config.ClusterConfig, seconds: float = SECONDS_TO_CONNECT) -> waits.Wait:
    """Returns the scope in which this process connects to others; TensorFlow itself would wait for them without end.

    Args:
        config: `ClusterConfig` of this process.
        seconds: how long the others may take to start.
    """
    addresses = [f'{job}:{index} ({config.jobs[job][index]})' for job, index in _others(config)]
    return waits.Wait(f'connections to {", ".join(addresses)}', seconds, details=lambda: silence_in_words(config))


class Watchdog:
    """Ends this process when a call into TensorFlow does not return, so that it can be started again.

    Nothing can interrupt a step that waits for a lost worker, so a second thread watches the main thread. The first
    call of a kind traces and compiles, so its limit is ten times as long.

    Args:
        seconds: how long a step may take; 0: watch nothing.
        config: `ClusterConfig`, to name the tasks that do not answer, or None.
        on_timeout: function of a sentence, called once in the watching thread; None: print it and end with exit code
            TRY_AGAIN.
        first_call_factor: how many times as long the first call of a kind may take.

    Attributes:
        seconds: the argument.
    """

    def __init__(self, seconds: float, config: cluster_config.ClusterConfig | None = None,
                 on_timeout: Callable[[str], Any] | None = None, first_call_factor: float = 10) -> None:
        self.seconds = seconds
        self._config = config
        self._on_timeout = waits.end_process if on_timeout is None else on_timeout
        self._first_call_factor = first_call_factor
        self._kind: str | None = None
        self._progress: Callable[[], Any] = int
        self._known_kinds: set[str] = set()
        self._allowed = 0.
        self._deadline: float | None = None
        self._has_ended = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name='watchdog', daemon=True)

    def __enter__(self) -> Self:
        if self.seconds:
            self._thread.start()
        return self

    def __exit__(self, *unused_error: Any) -> None:
        with self._changed:
            self._has_ended = True
            self._changed.notify()
        if self.seconds:
            self._thread.join()

    @contextlib.contextmanager
    def watch(self, kind: str = 'step', progress: Callable[[], Any] = int) -> Iterator[None]:
        """Limits the time of each step inside this scope; `beat`, or progress, restarts it.

        Args:
            kind: what is limited, in a word or two, such as 'step'.
            progress: function, called in the watching thread, whose result changes with each step; None: nothing is
                limited now.
        """
        self._kind, self._progress = kind, progress
        self._allowed = self.seconds * (1 if kind in self._known_kinds else self._first_call_factor)
        self.beat()
        try:
            yield
        finally:
            self._set_deadline(None)
        self._known_kinds.add(kind)

    def beat(self) -> None:
        """Restarts the time limit of the watched call, which has made progress."""
        self._set_deadline(time.monotonic() + self._allowed)

    def _set_deadline(self, deadline):
        with self._changed:
            self._deadline = deadline
            self._changed.notify()

    def _run(self):
        if self._is_late():
            self._on_timeout(self._sentence())

    def _is_late(self):
        """Returns True when a deadline has passed without progress, False when the scope has ended."""
        known = None
        while not self._has_ended:
            deadline = self._deadline
            position = None if deadline is None else self._progress()
            with self._changed:
                if deadline is not None and deadline == self._deadline:
                    if position is None or position != known:
                        self._deadline = time.monotonic() + self._allowed
                    elif time.monotonic() >= deadline:
                        return True
                known = position
                if not self._has_ended:
                    self._wait_until_next_look()
        return False

    def _wait_until_next_look(self):
        since = time.monotonic()
        planned = None if self._deadline is None else min(self._allowed / _LOOKS, _SECONDS_BETWEEN_LOOKS)
        self._changed.wait(planned)
        if planned and self._deadline is not None:
            self._deadline += waits.paused_seconds(since, planned)

    def _sentence(self):
        who = f'{silence_in_words(self._config)} ' if self._config else ''
        waited_for = ''.join(f'This process waits for {what}. ' for what in waits.current())
        return (f'No {self._kind} ended in {self._allowed:g} s (--step_timeout_seconds={self.seconds:g}). {who}'
                f'{waited_for}Training resumes from the newest checkpoint when the same command runs again.')


class Alone:
    """Watches the work of a `Trainer` that knows no other tasks.

    Args:
        step_timeout_seconds: how long a step may take; 0: any time.
        is_worker_back: function that returns whether a worker that was left out answers again.
        config: `ClusterConfig`, to name the tasks that do not answer, or None.
    """

    def __init__(self, step_timeout_seconds: float = 0, is_worker_back: Callable[[], bool] = bool,
                 config: cluster_config.ClusterConfig | None = None) -> None:
        self.is_worker_back, self._config = is_worker_back, config
        self._watchdog = Watchdog(step_timeout_seconds, config)

    @contextlib.contextmanager
    def minding(self, ask_to_stop: Callable[[str], Any]) -> Iterator[None]:
        """Within this scope, watches the work inside `watch`.

        Args:
            ask_to_stop: function of the reason, called from another thread when training should stop.
        """
        del ask_to_stop  # nobody else can ask
        with self._watchdog:
            yield

    def watch(self, kind: str = 'step', progress: Callable[[], Any] = int) -> contextlib.AbstractContextManager[None]:
        """Returns the scope of some steps; see `Watchdog`."""
        return self._watchdog.watch(kind, progress)

    def beat(self) -> None:
        """Reports that the work inside `watch` makes progress."""
        self._watchdog.beat()

    def silence_in_words(self) -> str:
        """Returns a sentence that says which other tasks do not answer; '' without others."""
        return silence_in_words(self._config) if self._config else ''


class Chief(Alone):
    """Watches for machines that are about to be preempted, and for work that hangs.

    Args:
        config: `ClusterConfig` of the chief.
        needed_job: 'worker' or 'ps'; training needs all tasks of this job.
        step_timeout_seconds: as in `Alone`.
        is_worker_back: as in `Alone`.
    """

    def __init__(self, config: cluster_config.ClusterConfig, needed_job: str, step_timeout_seconds: float,
                 is_worker_back: Callable[[], bool] = bool) -> None:
        super().__init__(step_timeout_seconds, is_worker_back, config)
        self._listening = config, messages.STOP, (needed_job,)

    @contextlib.contextmanager
    def minding(self, ask_to_stop: Callable[[str], Any]) -> Iterator[None]:
        """Within this scope, reports signals to needed servers, and watches the work inside `watch`.

        Args:
            ask_to_stop: as in `Alone`, called when a needed server gets a signal.
        """
        def hear(task):
            ask_to_stop(f'a signal to {task}')

        messages.listen(*self._listening, hear)
        with super().minding(ask_to_stop):
            yield
