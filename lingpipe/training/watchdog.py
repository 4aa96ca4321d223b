"""Time limits of steps; a process ends at the limit."""

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

from lingpipe.cluster import answers, cluster_config, waits

_FIRST_CALL_FACTOR = 10


class Watchdog:
    """Limits the time of steps: nothing can interrupt a step that waits for a lost worker, but its process can end.

    The first call of a kind traces and compiles, so its limit is ten times as long.

    Args:
        seconds: how long a step may take; 0: any time.
        config: `ClusterConfig`, to name the peers that do not answer; None: this process is alone.
        needed_job: 'worker' or 'ps' if training needs all of these; one that gets a signal asks the chief to stop.
        is_worker_back: function that returns whether a dropped worker has come back.
    """

    def __init__(self, seconds: float = 0, config: cluster_config.ClusterConfig | None = None,
                 needed_job: str | None = None, is_worker_back: Callable[[], bool] = bool) -> None:
        self.seconds, self.is_worker_back = seconds, is_worker_back
        self._config, self._needed_job = config, needed_job
        self._known_kinds: set[str] = set()
        self._num_beats = 0

    def listen(self, ask_to_stop: Callable[[str], Any]) -> None:
        """Call `ask_to_stop` with the reason, in another thread, when a needed server gets a signal."""
        if self._config and self._needed_job:
            answers.listen(self._config, self._needed_job, lambda task: ask_to_stop(f'a signal to {task}'))

    @contextlib.contextmanager
    def watch(self, kind: str = 'step', progress: Callable[[], Any] = int) -> Iterator[None]:
        """Limit the time of each step inside this scope; `beat`, or progress, restarts the clock.

        Args:
            progress: function, called in the watching thread, whose result changes with each step; while it is None,
                nothing is limited.
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
        """Restart the time limit of the watched call, which has made progress."""
        self._num_beats += 1

    def silence_in_words(self) -> str:
        """Return a sentence that says which peers do not answer; '' without peers."""
        return answers.silence_in_words(self._config) if self._config else ''
