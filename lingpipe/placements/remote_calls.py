"""Concurrent calls of one function on the workers of parameter servers; a thread waits for each."""

import functools
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

_RETRY_SECONDS = 0.1


class _Calls:
    """Calls that have been started, and their answers; `check` raises the error of a cluster that is lost."""

    def __init__(self, check: Callable[[], Any] = bool) -> None:
        self.num_under_way, self._check = 0, check
        self._answers: queue.Queue = queue.Queue()

    def _start_thread(self, name, calls, run):
        threading.Thread(target=_answer, args=(calls, run, self._answers), name=name, daemon=True).start()

    def next_answer(self, seconds: float) -> Any:
        """Return what a call returned, as a nest of NumPy arrays, or raise its error; None if no call ends in time."""
        try:
            answer, error = self._answers.get(timeout=seconds)
        except queue.Empty:
            self._check()
            return None
        self.num_under_way -= 1
        if error is not None:
            raise error
        return answer


class RemoteCalls(_Calls):
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
        super().__init__(coordinator.done)
        self._coordinator, self._function, self.limit = coordinator, function, limit
        self._values: queue.Queue = queue.Queue()
        for index in range(limit):
            self._start_thread(f'remote call {index}', self._values, _fetch)

    def call(self, arguments: tuple) -> None:
        """Start a call with tensors; raise the error of an earlier call."""
        self._values.put(self._coordinator.schedule(self._function, args=arguments))
        self.num_under_way += 1


class PinnedCalls(_Calls):
    """Calls of a concrete function that each run on a chosen worker, which alone has the input of the call.

    ::

        call(..., worker=0) ─> queue 0 ─> worker 0 ─┐
        call(..., worker=1) ─> queue 1 ─> worker 1 ─┴─> answers ─> next_answer()
    """

    def __init__(self, function: Callable, devices: list[str]) -> None:
        super().__init__()
        self._arguments: list[queue.Queue] = [queue.Queue() for _ in devices]
        for arguments, device in zip(self._arguments, devices):
            self._start_thread(f'calls on {device}', arguments, functools.partial(_call_on, device, function))

    def call(self, arguments: tuple, worker: int) -> None:
        """Start a call with tensors and iterators on a worker, by its number."""
        self._arguments[worker].put(arguments)
        self.num_under_way += 1


def _answer(calls, run, answers):
    """Run calls in a thread that retains none of them, so functions can be freed while the servers still run."""
    while True:
        call = calls.get()
        try:
            answers.put((run(call), None))
        except Exception as error:  # `next_answer` raises it
            answers.put((None, error))
        del call


def _call_on(device, function, arguments):
    with tf.device(device):
        return tf.nest.map_structure(lambda tensor: tensor.numpy(), function(*arguments))


def _fetch(value):
    """Return the result of a call, which the coordinator repeats if a worker is lost before the result has arrived."""
    while True:
        try:
            return value.fetch()
        except Exception as error:
            if value._get_error() is error:  # set by the coordinator, which gives the call up
                raise
        time.sleep(_RETRY_SECONDS)
