"""Writing checkpoints while training continues: values are copied to host memory between two steps, and written later.

::

    training   step ─ step ─ copy ─ step ─ step ─ step ─ step ─ step ─ step ─ wait, if need be ─ copy ─ step ─ ...
                               │                                                │
    writer                     └─> values ──> index ──> list of checkpoints ────┘
                                                        the new one counts once its name is in the list
"""

import concurrent.futures
import contextlib
import functools
import os
import threading
from collections.abc import Callable

import tensorflow as tf

_NICENESS = 10
_FIRST_CPU = {'device_type': 'CPU', 'device_index': 0}


class BackgroundWriter:
    """Runs one function at a time in a thread, and raises its errors in the calling thread."""

    def __init__(self) -> None:
        self._threads = concurrent.futures.ThreadPoolExecutor(
            1, thread_name_prefix='checkpoint writer', initializer=_let_others_go_first)
        self._work: concurrent.futures.Future[None] | None = None

    def begin(self, work: Callable[[], None]) -> None:
        """Starts a function of no arguments once the previous one has ended; raises the error of that one."""
        self.wait()
        self._work = self._threads.submit(work)

    def check(self) -> None:
        """Raises the error of the function if it has ended with one; does not wait."""
        if self._work and self._work.done():
            self.wait()

    def wait(self) -> None:
        """Waits for the function to end, and raises its error."""
        work, self._work = self._work, None
        if work:
            work.result()


def _let_others_go_first():
    """Lowers the priority of this thread, so that steps get the cores first; Linux has a priority for each thread."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


def copied_to_hosts(state: dict) -> dict:
    """Copies a nest of `tf.Variable` to the memory of the machines that hold them; later steps change no copy.

    If a variable is already in the memory of a host, the copy shares its buffer at first: TensorFlow gives the variable
    a new buffer when a step changes it.
    """
    copies = tf.nest.map_structure(_copied_to_host, state)
    wait_for_all(tf.nest.flatten(copies))
    return copies


def _copied_to_host(variable):
    with tf.device(host_of(variable.device)):
        return tf.identity(variable.read_value())


@functools.lru_cache
def host_of(device: str) -> str:
    """Returns the name of the first CPU of the machine of a device."""
    return tf.DeviceSpec.from_string(device).replace(**_FIRST_CPU).to_string()


def wait_for_all(tensors: list[tf.Tensor]) -> None:
    """Waits until the last of the tensors on each machine is computed; they are in the order of their creation.

    Other machines run operations in order, but later than they are called here.
    """
    for tensor in {tensor.device: tensor for tensor in tensors}.values():
        with tf.device(tensor.device):
            tf.raw_ops.Size(input=tensor).numpy()
