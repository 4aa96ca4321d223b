"""Concurrent calls of one function on the workers of parameter servers; a thread waits for each."""

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

_RETRY_SECONDS = 0.1


class _Calls:
    """Calls that have been started, and their answers; `_check` raises the error of a cluster that is lost."""

    def __init__(self) -> None:
        self.num_under_way = 0
        self._answers: queue.Queue = queue.Queue()

    def next_answer(self, seconds: float) -> Any:
        """Return what a call returned, as nest of NumPy arrays, or raise its error; None if none ends in time."""
        try:
            answer, error = self._answers.get(timeout=seconds)
        except queue.Empty:
            self._check()
            return None
        self.num_under_way -= 1
        if error is not None:
            raise error
        return answer

    def _check(self):
        pass


class RemoteCalls(_Calls):
    """Calls that any worker may run, up to a limit.

    The coordinator of a cluster only reports that all calls have ended, or waits for one of them. So a thread waits for
    each call::

        call(...) ─> coordinator ─> worker 0, worker 1, ... ─> answers ─> next_answer()
                         a worker is lost: another one, or the same once it is back, repeats its call

    Args:
        function: concrete function.
        limit: largest number of concurrent calls.
    """

    def __init__(self, coordinator: tf.distribute.coordinator.ClusterCoordinator, function: Callable,
                 limit: int) -> None:
        super().__init__()
        self._coordinator, self._function, self.limit = coordinator, function, limit
        self._values: queue.Queue = queue.Queue()
        for index in range(limit):
            threading.Thread(target=_fetch, args=(self._values, self._answers), name=f'remote call {index}',
                             daemon=True).start()

    def call(self, arguments: tuple) -> None:
        """Start a call with tensors; raise the error of an earlier call."""
        self._values.put(self._coordinator.schedule(self._function, args=arguments))
        self.num_under_way += 1

    def _check(self):
        self._coordinator.done()


class PinnedCalls(_Calls):
    """Calls that each run on a chosen worker, which alone has the input of the call.

    ::

        call(..., worker=0) ─> queue 0 ─> worker 0 ─┐
        call(..., worker=1) ─> queue 1 ─> worker 1 ─┴─> answers ─> next_answer()

    Args:
        function: concrete function.
        devices: list of the names of the workers' hosts.
    """

    def __init__(self, function: Callable, devices: list[str]) -> None:
        super().__init__()
        self._arguments: list[queue.Queue] = [queue.Queue() for _ in devices]
        for arguments, device in zip(self._arguments, devices):
            threading.Thread(target=_call_on, args=(device, function, arguments, self._answers),
                             name=f'calls on {device}', daemon=True).start()

    def call(self, arguments: tuple, worker: int) -> None:
        """Start a call with tensors and iterators on a worker, by its number."""
        self._arguments[worker].put(arguments)
        self.num_under_way += 1


def _call_on(device, function, arguments, answers):
    while True:
        given = arguments.get()
        try:
            with tf.device(device):
                answers.put((tf.nest.map_structure(lambda tensor: tensor.numpy(), function(*given)), None))
        except Exception as error:  # `next_answer` raises it
            answers.put((None, error))
        del given


def _fetch(values, answers):
    """Wait for calls in a thread. It keeps no value, so that the function can be freed while its servers still run."""
    while True:
        value = values.get()
        answers.put(_answer(value))
        del value


def _answer(value):
    """Return the result of a call and its error, one of them None.

    A worker may be lost after a call has ended and before its result has arrived. The coordinator then repeats the
    call, so an error counts only if the coordinator has set it.
    """
    while True:
        try:
            return value.fetch(), None
        except Exception as error:  # `next_answer` raises it
            if value._get_error() is error:
                return None, error
        time.sleep(_RETRY_SECONDS)
