"""Concurrent calls of one function on the workers of parameter servers; a thread waits for each."""

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

_RETRY_SECONDS = 0.1


class RemoteCalls:
    """Calls that any worker may run, up to a limit.

    The coordinator of a cluster only reports whether all calls have ended, or waits for one call. So a thread waits for
    each call::

        call(...) ─> coordinator ─> worker 0, worker 1, ... ─> answers ─> next_answer()
                         a worker is lost: another one, or the same once it is back, repeats its call

    Args:
        function: concrete function.
        limit: largest number of concurrent calls.
    """

    def __init__(self, coordinator: tf.distribute.coordinator.ClusterCoordinator, function: Callable,
                 limit: int) -> None:
        self._coordinator, self._function, self.limit = coordinator, function, limit
        self.num_under_way = 0
        self._values: queue.Queue = queue.Queue()
        self._answers: queue.Queue = queue.Queue()
        for index in range(limit):
            threading.Thread(target=_answer, args=(self._values, self._answers), name=f'remote call {index}',
                             daemon=True).start()

    def call(self, arguments: tuple) -> None:
        """Start a call with tensors; raise the error of an earlier call."""
        self._values.put(self._coordinator.schedule(self._function, args=arguments))
        self.num_under_way += 1

    def next_answer(self, seconds: float) -> Any:
        """Return what a call returned, as a nest of NumPy arrays, or raise its error; None if no call ends in time."""
        try:
            answer, error = self._answers.get(timeout=seconds)
        except queue.Empty:
            self._coordinator.done()  # raises the error of a cluster that is lost
            return None
        self.num_under_way -= 1
        if error is not None:
            raise error
        return answer


def _answer(values, answers):
    """Wait for calls in a thread that retains none of them, so functions can be freed while the servers still run."""
    while True:
        value = values.get()
        try:
            answers.put((_fetch(value), None))
        except Exception as error:  # `next_answer` raises it
            answers.put((None, error))
        del value


def _fetch(value):
    """Return the result of a call, which the coordinator repeats if a worker is lost before the result has arrived."""
    while True:
        try:
            return value.fetch()
        except Exception as error:
            if value._get_error() is error:  # set by the coordinator, which gives the call up
                raise
        time.sleep(_RETRY_SECONDS)
