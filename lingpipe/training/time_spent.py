"""Where the time of a training run goes: into steps, waiting for input, saving, and evaluation."""

import contextlib
import time
from collections.abc import Iterator

STEPS, INPUT, SAVING, EVALUATION = KINDS = ('steps', 'input', 'saving', 'evaluation')


class TimeSpent:
    """Seconds by kind. Time inside a nested scope counts only there::

        │      evaluation      │ ─> evaluation 6 s
             │ saving │          ─> saving 3 s
        0    2        5        9

    Do not count the first step, in which the graph is built.
    """

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(KINDS, 0.0)

    def add(self, kind: str, seconds: float) -> None:
        """Counts seconds of a kind."""
        self._seconds[kind] += seconds

    @contextlib.contextmanager
    def of(self, kind: str) -> Iterator[None]:
        """Counts the time inside this scope, minus the time that nested scopes count."""
        begin, counted = time.monotonic(), self.total
        try:
            yield
        finally:
            self.add(kind, max(time.monotonic() - begin - (self.total - counted), 0.0))

    @property
    def total(self) -> float:
        """Seconds of all kinds."""
        return sum(self._seconds.values())

    def shares(self) -> dict[str, float]:
        """Returns {kind: share of the total}; empty before any time was counted."""
        return {kind: seconds / self.total for kind, seconds in self._seconds.items()} if self.total else {}
