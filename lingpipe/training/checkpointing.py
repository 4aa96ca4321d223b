"""The checkpoints of a training run. A thread writes them while training continues.

::

    begin_save       state ─ copy ──> thread: ckpt-12 is written ──> ckpt-4 is deleted
    meanwhile        step ─ step ─ step ─ step ─ step ─ step ─ wait, if need be ─ copy ─ step ─ ...
    restore_newest   ckpt-12 is corrupt: a warning, it stays ──> ckpt-8 ──> state
"""

import concurrent.futures
import contextlib
import functools
import os
import threading
from collections.abc import Callable

import keras
import tensorflow as tf
from absl import logging

from lingpipe.cluster import waits
from lingpipe.devices import device_kinds
from lingpipe.optimizers import training_optimizer
from lingpipe.training import checkpoint_contents, checkpoints, errors, train_program

_NICENESS = 10


class BackgroundWriter:
    """A thread that runs one function at a time. Errors are raised in the calling thread."""

    def __init__(self) -> None:
        self._threads = concurrent.futures.ThreadPoolExecutor(
            1, thread_name_prefix='checkpoint writer', initializer=_let_others_go_first)
        self._work: concurrent.futures.Future[None] | None = None

    def begin(self, work: Callable[[], None]) -> None:
        """Wait for the previous function as `wait` does, then start `work` in the thread."""
        self.wait()
        self._work = self._threads.submit(work)

    def check(self) -> None:
        """Raise the error of the function if it has failed. Do not wait."""
        if self._work and self._work.done():
            self.wait()

    def wait(self) -> None:
        """Wait for the function to end, and raise its error."""
        work, self._work = self._work, None
        if work:
            work.result()

    def close(self) -> None:
        """Wait for the function, and log its error as a warning."""
        try:
            self.wait()
        except (errors.TrainingError, tf.errors.OpError) as error:
            logging.warning('%s', error)  # not raised, because an earlier error may be ending the run


def _let_others_go_first() -> None:
    """Lower the priority of this thread."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)  # on Linux a thread has its own priority


class Checkpointer:
    """Writer and reader of the checkpoints of a training run.

    A checkpoint has the step, the position in the data, weights, moving statistics, slots and moving averages.

    Args:
        writer: the `BackgroundWriter` of the training run; None: a new one.
        wait: function `(path, 'written' or 'read')` that returns the context manager around this write or read.

    Attributes:
        state: dictionary from the names in a checkpoint to `tf.Variable`.
    """

    def __init__(self, directory: str, program: train_program.TrainProgram, max_to_keep: int = 5,
                 writer: BackgroundWriter | None = None,
                 wait: Callable[[str, str], waits.Wait] = waits.for_checkpoint) -> None:
        self._directory = str(directory)
        self._max_to_keep = max_to_keep
        self.state = _state_of(program)
        self._writer = writer or BackgroundWriter()
        self._wait = wait
        self._damaged = []
        self._current: str | None = None  # the checkpoint of this state, if it has been written or read

    def save(self, position: Callable[[], int | None] = lambda: 0) -> str | None:
        """Write a checkpoint of the current state. Any thread may call `save`.

        Args:
            position: function whose result changes with each update of the state. The result is None during an update.

        Returns:
            Path of the checkpoint; None if the state was updated meanwhile.

        Raises:
            tf.errors.OpError: this checkpoint or the previous one could not be written.
        """
        self._writer.wait()
        before = position()
        copies = copied_to_hosts(self.state)
        if before is None or position() != before:
            return None
        path = self._begin_write(copies)
        self._writer.wait()
        return path

    def begin_save(self, then: Callable[[], None] = lambda: None) -> str:
        """Copy the current state, begin to write the copy, and return the checkpoint's path.

        Wait for the previous write first, and raise its error. The writer's thread calls `then` after this write.
        """
        self._writer.wait()
        return self._begin_write(copied_to_hosts(self.state), then)

    def _begin_write(self, copies: dict[str, tf.Tensor], then: Callable[[], None] = lambda: None) -> str:
        """Start to write copies of the state in the writer's thread, and return the checkpoint's path."""
        path = os.path.join(self._directory, f'ckpt-{int(copies["global_step"])}')
        self._writer.begin(functools.partial(self._write, path, copies, then))
        return path

    def _write(self, path: str, copies: dict[str, tf.Tensor], then: Callable[[], None]) -> None:
        with self._wait(path, 'written'):
            if path != self._current or not checkpoints.is_complete(path):  # else nothing has changed
                checkpoints.remove_unfinished(self._directory)
                state = {name: _variable_of(copy) for name, copy in copies.items()}
                try:
                    checkpoint_contents.checkpoint_of(state).write(path, options=self._options)
                except tf.errors.OpError:  # such as a full disk, which may leave an incomplete index
                    with contextlib.suppress(tf.errors.OpError):
                        checkpoints.delete(path)
                    raise
            then()  # before the previous checkpoint is deleted, so that best.json always names an existing one
            self._damaged = [damaged for damaged in self._damaged if damaged != path]
            checkpoints.keep_newest(path, self._max_to_keep, self._damaged)
        self._current = path

    @functools.cached_property
    def _options(self) -> tf.train.CheckpointOptions:
        devices = {variable.device for variable in self.state.values()}
        return checkpoint_contents.checkpoint_options(self._directory, devices)

    def restore_newest(self) -> str | None:
        """Read the newest checkpoint that is not corrupt. Return the path, or None if there are no checkpoints.

        Raises:
            TrainingError: all checkpoints are corrupt, or the newest readable one is of another model.
        """
        newest, self._damaged = checkpoints.read_newest(self._directory, self.restore)
        return newest

    def restore(self, path: str) -> None:
        """Read a checkpoint into the state of the run."""
        with self._wait(path, 'read'):
            checkpoint_contents.require_match(path, self.state)
            checkpoint_contents.read_state(path, self.state, self._options)
        self._current = str(path)


def _variable_of(copy: tf.Tensor) -> tf.Variable:
    with tf.device(copy.device):
        return tf.Variable(copy, trainable=False)


def _state_of(program: train_program.TrainProgram) -> dict[str, tf.Variable]:
    """Return the variables of a training program by their names in a checkpoint."""
    # There is no random state, because all random numbers follow from the step.
    parts = {'model': program.named_variables, 'optimizer': _optimizer_variables(program.optimizer)}
    state = {f'{part}/{name}': variable.value for part, named in parts.items() for name, variable in named.items()}
    averages = program.average.averages if program.average else {}
    return {'global_step': program.global_step, 'input_position': program.input_position, **state,
            **{f'moving_average/{name}': average for name, average in averages.items()}}


def _optimizer_variables(optimizer: keras.optimizers.Optimizer) -> dict[str, keras.Variable]:
    """Return the variables of an optimizer by name."""
    inner = training_optimizer.unscaled(optimizer)
    # Without a constant learning rate in the checkpoint, training can resume with another one.
    kept = [variable for variable in inner.variables if variable.name != 'learning_rate']
    # With the class in the names, slots of another class do not match.
    named = {f'{type(inner).__name__}/{position:04d}': variable for position, variable in enumerate(kept)}
    if training_optimizer.is_scaling(optimizer):
        named |= {'loss_scale/scale': optimizer.dynamic_scale, 'loss_scale/finite_steps': optimizer.step_counter}
    return named


def copied_to_hosts(state: dict[str, tf.Variable]) -> dict[str, tf.Tensor]:
    """Copy each variable of `state` to the memory of its host."""
    copies = {name: _copied_to_host(variable) for name, variable in state.items()}
    # Other machines run operations in order, but asynchronously, so the last copy on each device is awaited.
    for tensor in {tensor.device: tensor for tensor in copies.values()}.values():
        with tf.device(tensor.device):
            tf.raw_ops.Size(input=tensor).numpy()
    return copies


def _copied_to_host(variable: tf.Variable) -> tf.Tensor:
    with tf.device(device_kinds.host_of(variable.device)):
        # The copy of a variable in host memory shares the variable's buffer, until a step changes the variable:
        # TensorFlow then gives the variable a new buffer.
        return tf.identity(variable.read_value())
