"""Writing checkpoints while training continues: values are copied to host memory between two steps, and written later.

::

    training   step ─ step ─ copy ─ step ─ step ─ step ─ step ─ step ─ step ─ wait, if need be ─ copy ─ step ─ ...
                               │                                                │
    writer                     └─> values ──> index ──> list of checkpoints ────┘
                                                        the new one counts once its name is in the list
"""

import concurrent.futures
import contextlib
import os
import threading
from collections.abc import Callable

import tensorflow as tf

from lingpipe.devices import device_kinds

_NICENESS = 10


class BackgroundWriter:
    """Runs one function at a time in a thread, and raises its errors in the calling thread."""

    def __init__(self) -> None:
        self._threads = concurrent.futures.ThreadPoolExecutor(
            1, thread_name_prefix='checkpoint writer', initializer=_let_others_go_first)
        self._work: concurrent.futures.Future[None] | None = None

    def begin(self, work: Callable[[], None]) -> None:
        """Start a function of no arguments once the previous one has ended; raise the error of that one."""
        self.wait()
        self._work = self._threads.submit(work)

    def check(self) -> None:
        """Raise the error of the function if it has ended with one; do not wait."""
        if self._work and self._work.done():
            self.wait()

    def wait(self) -> None:
        """Wait for the function to end, and raise its error."""
        work, self._work = self._work, None
        if work:
            work.result()


def _let_others_go_first() -> None:
    """Lower the priority of this thread, so that steps get the cores first; Linux has a priority for each thread."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


def copied_to_hosts(state: dict) -> dict:
    """Copy a nest of `tf.Variable` to the memory of the machines that hold them; later steps change no copy.

    If a variable is already in the memory of a host, the copy shares its buffer at first: TensorFlow gives the variable
    a new buffer when a step changes it.
    """
    copies = tf.nest.map_structure(_copied_to_host, state)
    # Other machines run operations in order, but later than they are called here: the last one of each is awaited.
    for tensor in {tensor.device: tensor for tensor in tf.nest.flatten(copies)}.values():
        with tf.device(tensor.device):
            tf.raw_ops.Size(input=tensor).numpy()
    return copies


def _copied_to_host(variable: tf.Variable) -> tf.Tensor:
    with tf.device(device_kinds.host_of(variable.device)):
        return tf.identity(variable.read_value())
