"""Copies of the training state in the memory of two machines, so that few steps are lost with one of them.

::

    worker 0   stage 0 computes ── weights, slots, averages of one step ──┬─> own memory
                                                                          └─> memory of worker 1
    worker 1   stage 1 computes ── those of the same step ────────────────┬─> own memory
                                                                          └─> memory of worker 2
    ...

The state is copied between two steps, and only so often that copying takes a small part of the time. Only the process
that made the copies can use them: after a restart it resumes from the newest checkpoint.
"""

import time
from typing import NamedTuple

import tensorflow as tf

from lingpipe.training import background_writer

_WORKERS = ('/job:worker/',)


class _Copies(NamedTuple):
    own: list
    elsewhere: list
    step: int


class StateMirror:
    """Keeps the newest copies of a state over hosts; making them takes up to `share` of the time."""

    def __init__(self, share: float = .01) -> None:
        self._share = share
        self._copies: _Copies | None = None
        self._due = 0.

    @property
    def step(self) -> int:
        """Number of steps done in the newest copies; -1 without any."""
        return self._copies.step if self._copies else -1

    def after_steps(self, state: dict) -> None:
        """Copies a state, that of a `Checkpointer`, if it is time to."""
        if time.monotonic() >= self._due:
            begin = time.monotonic()
            self._copy(state)
            end = time.monotonic()
            self._due = end + (end - begin) / self._share

    def _copy(self, state):
        """Copies a state; the previous copies are kept until the new ones are complete."""
        own = tf.nest.flatten(background_writer.copied_to_hosts(state))
        next_host = _next_hosts([tensor.device for tensor in own])
        elsewhere = [_sent(tensor, next_host.get(tensor.device)) for tensor in own]
        background_writer.wait_for_all(elsewhere)
        self._copies = _Copies(own, elsewhere, int(state['global_step']))

    def restore(self, state: dict) -> bool:
        """Assigns the newest copies to a state on any devices; False, and nothing changes, if some cannot be read."""
        variables, readable = tf.nest.flatten(state), {}
        found = [self._find(own, elsewhere, readable) for own, elsewhere in zip(*self._copies[:2])]
        if any(tensor is None for tensor in found):
            return False
        for variable, tensor in zip(variables, found):
            with tf.device(variable.device):
                variable.assign(tensor)
        return True

    def _find(self, own, elsewhere, readable):
        """Returns a copy on a machine that still has it, or None; each machine is asked once.

        A machine that was restarted answers, but has no copies.
        """
        for tensor in (own, elsewhere):
            if tensor.device not in readable:
                readable[tensor.device] = _can_be_read(tensor)
            if readable[tensor.device]:
                return tensor
        return None


def _next_hosts(devices):
    """Returns the next host for each of the workers' hosts; the chief neither sends its state nor receives any."""
    hosts = sorted({device for device in devices if any(part in device for part in _WORKERS)})
    return dict(zip(hosts, hosts[1:] + hosts[:1])) if len(hosts) > 1 else {}


def _sent(tensor, host):
    if host is None:
        return tensor
    with tf.device(host):
        return tf.identity(tensor)


def _can_be_read(tensor):
    try:
        background_writer.wait_for_all([tensor])
    except tf.errors.OpError:
        return False
    return True
