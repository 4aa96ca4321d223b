"""Calls of a function on whichever worker is free, answered in the order in which they end."""

import queue
import threading
import time

_RETRY_SECONDS = 0.1


class RemoteCalls:
    """Calls of one function that are under way at a time, up to a number.

    The coordinator of a cluster only tells when all calls have ended, or waits for one of them; here a thread waits for each::

        call(...) ─> coordinator ─> worker 0, worker 1, ... ─> answers ─> next_answer()
                         a worker dies: another one, or the same once it is back, does its call again

    Args:
        coordinator: `tf.distribute.coordinator.ClusterCoordinator`.
        function: concrete function.
        limit: largest number of calls under way.
    """

    def __init__(self, coordinator, function, limit):
        self._coordinator, self._function, self.limit = coordinator, function, limit
        self.num_under_way = 0
        self._values, self._answers = queue.Queue(), queue.Queue()
        for index in range(limit):
            threading.Thread(target=_fetch, args=(self._values, self._answers), name=f'remote call {index}', daemon=True).start()

    def call(self, arguments):
        """Sends a call off.

        Args:
            arguments: tuple of tensors.

        Raises:
            Exception: what an earlier call failed with.
        """
        self._values.put(self._coordinator.schedule(self._function, args=arguments))
        self.num_under_way += 1

    def next_answer(self, seconds):
        """Waits for a call to end.

        Args:
            seconds: how long to wait.

        Returns:
            What the call returned, as nest of NumPy arrays; None where none has ended yet.

        Raises:
            Exception: what the call failed with.
        """
        try:
            answer, error = self._answers.get(timeout=seconds)
        except queue.Empty:
            self._coordinator.done()  # which raises what the cluster failed with
            return None
        self.num_under_way -= 1
        if error is not None:
            raise error
        return answer


def _fetch(values, answers):
    """Runs in a thread, which must not keep the function from being forgotten while its servers still run."""
    while True:
        value = values.get()
        answers.put(_answer(value))
        del value


def _answer(value):
    """Returns what a call returned and what it failed with, one of them None.

    A worker may die after a call has ended and before its result is here. The coordinator copies the result too, sees the same
    and has the call done again, so an error counts only where the coordinator has set it.
    """
    while True:
        try:
            return value.fetch(), None
        except Exception as error:  # which the thread that asks gets to see
            if value._get_error() is error:
                return None, error
        time.sleep(_RETRY_SECONDS)
