"""Copies of the training state in memory that outlives this process, for the process that replaces it.

::

    supervisor ── two pieces of memory ─────────────────────────────────┐
        │              ^ state of step 120        ^ state of step 160   v
        ├─ worker 0 ───┴──────────────────────────┴─ another is lost: exit code 75
        └─ worker 0 again, resumes from step 160

A piece begins with the length of its header. The length is written last, and is 0 until then. So a process that is
killed while it copies leaves the other piece whole.
"""

import contextlib
import json
import os
import time
from typing import Any, BinaryIO

import numpy as np
import tensorflow as tf
from absl import logging

from lingpipe.cluster import child_process
from lingpipe.training import background_writer

_LENGTH_BYTES = 8


class HandedOverState:
    """Keeps the newest copies of a state in the memory of this process's supervisor.

    Args:
        share: part of the time that making copies may take.
    """

    def __init__(self, share: float = .01) -> None:
        self._share, self._due = share, 0.
        self._pieces = child_process.memory()
        headers = {piece: _header(piece) for piece in self._pieces}
        self._whole = {piece: header for piece, header in headers.items() if header}

    @property
    def step(self) -> int:
        """Number of steps done in the newest copies; -1 without any."""
        return max((header['step'] for header in self._whole.values()), default=-1)

    def after_steps(self, state: dict) -> None:
        """Copies a state if it is time to.

        Args:
            state: nested dictionary of `tf.Variable`, that of a `Checkpointer`.
        """
        begin = time.monotonic()
        if self._pieces and begin >= self._due:
            self._copy(state)
            end = time.monotonic()
            self._due = end + (end - begin) / self._share

    def restore(self, state: dict) -> bool:
        """Assigns the newest copies to a state.

        Args:
            state: as in `after_steps`.

        Returns:
            Whether the copies are of this state; if not, nothing was assigned.
        """
        piece = max(self._whole, key=lambda each: self._whole[each]['step'])
        variables = tf.nest.flatten(state)
        if self._whole[piece]['tensors'] != _described(state):
            return False
        with open(piece, 'rb', closefd=False) as file:
            file.seek(_start_of_values(file))
            for variable in variables:
                value = _read(file, variable)
                with tf.device(variable.device):
                    variable.assign(value)
        return True

    def _copy(self, state):
        """Copies into the piece that is not the newest; without memory for it, nothing is copied from then on."""
        piece = min(self._pieces, key=lambda each: self._whole.get(each, {'step': -1})['step'])
        copies = background_writer.copied_to_hosts(state)
        header = {'step': int(copies['global_step']), 'tensors': _described(state)}
        self._whole.pop(piece, None)
        try:
            with open(piece, 'r+b', closefd=False) as file:
                _write(file, header, tf.nest.flatten(copies))
        except OSError as error:
            logging.warning('The state of training could not be copied in memory (%s): a restart will resume from the '
                            'newest checkpoint.', error.strerror)
            with contextlib.suppress(OSError):
                os.ftruncate(piece, 0)
            self._pieces = []
        else:
            self._whole[piece] = header


def _described(state):
    """Returns [name, dtype, shape] of each variable, in the order of `tf.nest.flatten`, as JSON has it."""
    return [[variable.name, variable.dtype.name, variable.shape.as_list()] for variable in tf.nest.flatten(state)]


def _header(piece):
    with open(piece, 'rb', closefd=False) as file:
        file.seek(0)
        length = int.from_bytes(file.read(_LENGTH_BYTES), 'little')
        return json.loads(file.read(length)) if length else None


def _start_of_values(file):
    file.seek(0)
    return _LENGTH_BYTES + int.from_bytes(file.read(_LENGTH_BYTES), 'little')


def _write(file: BinaryIO, header: dict[str, Any], tensors: list[tf.Tensor]) -> None:
    text = json.dumps(header).encode()
    file.seek(0)
    file.write(bytes(_LENGTH_BYTES))
    file.write(text)
    for tensor in tensors:
        file.write(np.ascontiguousarray(tensor.numpy()).reshape(-1).view(np.uint8).data)
    file.flush()
    file.seek(0)
    file.write(len(text).to_bytes(_LENGTH_BYTES, 'little'))


def _read(file, variable):
    dtype = np.dtype(variable.dtype.as_numpy_dtype)
    value = np.empty(variable.shape.num_elements() * dtype.itemsize, np.uint8)
    if file.readinto(value.data) != value.nbytes:
        raise EOFError(f'{variable.name} is not complete in the memory of the supervisor.')
    return value.view(dtype).reshape(variable.shape)
