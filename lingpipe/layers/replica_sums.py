"""Sums over replicas inside a layer, for the few layers whose outputs depend on what other replicas see."""

import contextlib
import itertools
import threading
from typing import NamedTuple

import tensorflow as tf

MOST_MICRO_BATCHES, _MOST_GROUPS = 2**12, 2**10  # more of them would share keys, and with these their sums

_local = threading.local()
_calls, _stages = itertools.count(1), itertools.count(1)
_groups = {}


class Replica(NamedTuple):
    """Which replica's share a layer works on.

    Attributes:
        num_replicas: R.
        stage: what `new_stage` returned for the stage, whose devices in all replicas do the sums.
        index: int64 scalar tensor, the number of the replica.
        micro_batch: int64 scalar tensor, the number of the micro-batch in the replica.
        is_compiled: whether XLA compiles the stage, inside whose programs there are no such sums.
    """

    num_replicas: int
    stage: int
    index: tf.Tensor
    micro_batch: tf.Tensor
    is_compiled: bool


def new_stage():
    """Returns a number for a stage of a pipeline that no other stage in this process has."""
    return next(_stages)


@contextlib.contextmanager
def working_for(replica):
    """Tells layers inside the `with` block which `Replica` they work for; None: there is one."""
    outer = _current()
    _local.replica = replica
    try:
        yield
    finally:
        _local.replica = outer


def sum_over_group(tensor, group_size):
    """Sums a tensor over a group of consecutive replicas, at the same micro-batch of each; its gradient is summed likewise.

    The sum is a collective operation inside the function of a stage: every member waits for the others, each in its own
    forward action, and again in its backward action. All follow one schedule, so that none waits for ever.

    Args:
        tensor: float32 tensor of a known shape.
        group_size: number of replicas in a group; with fewer replicas all are one group.

    Returns:
        Tensor of the same shape; `tensor` itself where there is one replica.

    Raises:
        ValueError: the groups do not come out even, there are too many of them, or XLA compiles the stage.
    """
    replica = _current()
    if replica is None or group_size == 1:
        return tensor
    group_size = min(group_size, replica.num_replicas)
    if replica.is_compiled:
        raise ValueError(f'group_size={group_size} shares statistics between replicas, which does not go into functions that XLA '
                         'compiles. Set jit_compile=False, or group_size=1.')
    if replica.num_replicas % group_size:
        raise ValueError(
            f'group_size={group_size} does not divide num_replicas={replica.num_replicas}: groups of replicas must be equal. Set it '
            f'to one of {[size for size in range(1, replica.num_replicas + 1) if replica.num_replicas % size == 0]}.')
    num_groups = replica.num_replicas // group_size
    if num_groups > _MOST_GROUPS:
        raise ValueError(
            f'group_size={group_size} with num_replicas={replica.num_replicas} makes {num_groups} groups, and {_MOST_GROUPS} are the '
            f'most whose sums can be told apart. Set group_size to {-(-replica.num_replicas // _MOST_GROUPS)} or more.')
    keys = [_key(replica) for _ in range(2)]
    groups = _groups.setdefault((replica.stage, group_size), len(_groups) + 1)
    group = tf.cast(groups * _MOST_GROUPS + replica.index // group_size, tf.int32)

    @tf.custom_gradient
    def total(tensor):
        return _all_reduce(tensor, group_size, group, keys[0]), lambda upstream: _all_reduce(upstream, group_size, group, keys[1])

    return total(tensor)


def _key(replica):
    """Every sum of a step has a key of its own, the same in all replicas."""
    return tf.cast(next(_calls) * MOST_MICRO_BATCHES + replica.micro_batch, tf.int32)


def _all_reduce(tensor, group_size, group, key):
    """Without a time limit: TensorFlow keeps a thread waiting for the end of each."""
    return tf.raw_ops.CollectiveReduceV2(
        input=tensor, group_size=group_size, group_key=group, instance_key=key, ordering_token=[], merge_op='Add', final_op='Id')


def _current():
    return getattr(_local, 'replica', None)
