"""Noticing that a cluster hangs: a worker that is stopped, or whose network is gone, raises no error anywhere.

    with watchdog.Watchdog(seconds=600, config=config) as dog:
        while ...:
            with dog.watch(num_steps):      # the process ends when this takes too long
                program.train(num_steps)
            checkpoint, evaluate            # may take as long as they need
"""

import contextlib
import os
import sys
import threading
import time

from lingpipe.distribute import exit_codes, silent_tasks


class Watchdog:
    """Ends this process where a call into TensorFlow does not return, so that a supervisor can start it again.

    The main thread cannot be woken from a step that waits for a lost worker, so another thread watches. The first watched call
    of a kind traces and compiles, for which it gets ten times as long.

    Args:
        seconds: how long a step may take; 0: watch nothing.
        config: `ClusterConfig`, to say which tasks do not answer, or None.
        on_timeout: function of a sentence, called once in the watching thread; None: print it and end with exit code TRY_AGAIN.
        first_call_factor: how many times as long the first watched call of a kind may take.
    """

    def __init__(self, seconds, config=None, on_timeout=None, first_call_factor=10):
        self._seconds = seconds
        self._config = config
        self._on_timeout = _end_process if on_timeout is None else on_timeout
        self._first_call_factor = first_call_factor
        self._kind = None
        self._known_kinds = set()
        self._allowed = 0.
        self._deadline = None
        self._has_ended = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name='watchdog', daemon=True)

    def __enter__(self):
        if self._seconds:
            self._thread.start()
        return self

    def __exit__(self, *unused_error):
        with self._changed:
            self._has_ended = True
            self._changed.notify()
        if self._seconds:
            self._thread.join()

    @contextlib.contextmanager
    def watch(self, num_steps=1, kind='step'):
        """Inside this scope `num_steps` steps may take so many times the time of one; the time is counted anew at each `beat`.

        Args:
            num_steps: number of steps.
            kind: in a word or two, what takes the time of a step.
        """
        self._kind = kind
        self._allowed = self._seconds * num_steps * (1 if kind in self._known_kinds else self._first_call_factor)
        self.beat()
        try:
            yield
        finally:
            self._set_deadline(None)
        self._known_kinds.add(kind)

    def beat(self):
        """Counts the time of the watched call anew: something came back."""
        self._set_deadline(time.monotonic() + self._allowed)

    def _set_deadline(self, deadline):
        with self._changed:
            self._deadline = deadline
            self._changed.notify()

    def _run(self):
        if self._is_late():
            self._on_timeout(self._sentence())

    def _is_late(self):
        """Returns True when a deadline has passed, False when the scope has ended."""
        with self._changed:
            while not self._has_ended:
                left = None if self._deadline is None else self._deadline - time.monotonic()
                if left is not None and left <= 0:
                    return True
                self._changed.wait(left)
        return False

    def _sentence(self):
        silent = silent_tasks.find(self._config) if self._config else []
        who = f'No answer came from {", ".join(silent)}' if silent else 'All other tasks answer'
        return (f'No {self._kind} ended in {self._allowed:g} s (--step_timeout_seconds={self._seconds:g}). {who}. Training goes on from the '
                'newest checkpoint when the same command runs again, as --max_restarts does by itself.')


def _end_process(sentence):
    print(f'Error: {sentence}', file=sys.stderr, flush=True)
    os._exit(exit_codes.TRY_AGAIN)
