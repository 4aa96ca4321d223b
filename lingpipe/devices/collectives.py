"""Sums of gradients, metrics and layer statistics over pipelines that train together."""

import contextlib
import functools
import itertools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Self

import tensorflow as tf

from lingpipe.devices import device_kinds
from lingpipe.private_api import distributed_values

MOST_MICRO_BATCHES, _MOST_GROUPS = 2**12, 2**14  # with more, different sums would share keys

_active: list['Group'] = []
_local = threading.local()
_calls = itertools.count(1)
stage_numbers = itertools.count(1)  # one for each stage of each pipeline in this process
_groups: dict[tuple[int, int], int] = {}  # (stage, group size) -> number that group keys are made of


class Group:
    """The pipelines that train together, each with its own step. This base class is a single pipeline.

    Subclasses are the workers of a cluster and the replicas of a TPU system.

    Attributes:
        index: the number of this pipeline. It is 0 if one program runs all pipelines.
    """

    count, index = 1, 0

    @contextlib.contextmanager
    def active(self) -> Iterator[Self]:
        """Make this group the result of `current()` inside the `with` block."""
        _active.append(self)
        try:
            yield self
        finally:
            _active.remove(self)

    def sum(self, device: str, tensors: Any) -> Any:
        """Sum a nest of tensors over the group, on each pipeline's `device`. Shapes must be known.

        All pipelines get the same sums, bit for bit.
        """
        return tensors

    def agree_on(self, device: str, aggregation: str, before: tf.Tensor,
                 after: tf.Tensor) -> tf.Tensor:
        """Combine the values that the pipelines have assigned to their copies of a variable.

        Args:
            aggregation: field of the Keras variable. 'mean' averages the values, and 'sum' adds up their changes. Any
                other aggregation takes the first pipeline's value.
            before: value before the batch, the same in all pipelines.
        """
        return after

    def sum_inside_program(self, tensor: tf.Tensor, group_size: int) -> tf.Tensor:
        """In a compiled program, sum a float tensor over groups of consecutive pipelines, like `sum_over_group`.

        Raises:
            ValueError: XLA compiles each pipeline separately.
        """
        raise ValueError(
            f'group_size={group_size} shares statistics between replicas, which does not go into functions that XLA '
            "compiles one by one. Set jit_compile=False, on TPUs tpu_route='logical_cores' or 'spmd', or "
            'group_size=1.')

    def index_on(self, device: str) -> int | tf.Tensor:
        """Return the index of this pipeline, as an int or an int64 scalar on `device`."""
        return self.index

    def creating_on(self, device: str) -> contextlib.AbstractContextManager[None]:
        """Return a context manager for creating variables on the core `device` of each replica.

        Raises:
            ValueError: this group is not a `LogicalCores`.
        """
        raise ValueError(f'A variable on {device} belongs to replicas that are not known. Build the pipeline inside '
                         '`with cores.active()`, where cores is a LogicalCores.')


_ALONE = Group()


def current() -> Group:
    """Return the `Group` whose step is being built."""
    return _active[-1] if _active else _ALONE


def gradient_sums(method: str, parts: Sequence[Any], devices: Sequence[str], owners: Sequence[str]) -> list[tf.Tensor]:
    """Sum the gradients of one stage over the replicas, in the current graph.

    A stage runs on one device per replica, and its weights are spread over these devices. Each method sends a weight's
    gradient sum to the owner, the device that stores the weight. Sums for different owners run at the same time::

        add               0 1 2 3 ──> owner, which adds up all of them
        ring              owner+1 ─> owner+2 ─> ... ─> owner; on the way every device adds its tensors
        two_dimensional   half of each tensor is summed along the columns,     0 ─> 1
                          then along the owner's row; the other half along     |    |
                          the rows, then along the owner's column: both        v    v
                          directions of a torus are busy                       2 ─> 3
        nccl              NVIDIA's all-reduce, by tf.distribute

    Args:
        method: one of `METHODS`. 'auto' takes 'nccl' if `devices` are different GPUs of one host, else 'add'.
        parts: for each replica, the list of its gradients, one per weight.
        owners: for each weight, the name of its owner.
    """
    if len(parts) == 1:
        return parts[0]
    build = _METHODS[_best(devices) if method == 'auto' else method]
    sums: list[Any] = [None] * len(owners)
    for owner in dict.fromkeys(owners):
        places = [place for place, device in enumerate(owners) if device == owner]
        bucket = [[part[place] for place in places] for part in parts]
        for place, total in zip(places, build(bucket, devices, owner)):
            sums[place] = total
    return sums


def _best(devices: Sequence[str]) -> str:
    specs = [tf.DeviceSpec.from_string(device) for device in devices]
    one_host = len({(spec.job, spec.replica, spec.task) for spec in specs}) == 1
    is_gpus = all(device_kinds.kind_of(device) == 'GPU' for device in devices) and len(set(devices)) == len(devices)
    return 'nccl' if one_host and is_gpus else 'add'


def _add(bucket: list, devices: Sequence[str], owner: str) -> list[tf.Tensor]:
    return _call(owner, _add_up, bucket)


def _ring(bucket: list, devices: Sequence[str], owner: str) -> list[tf.Tensor]:
    return _chain(list(zip(devices, bucket)), _position(devices, owner))


def _two_dimensional(bucket: list, devices: Sequence[str], owner: str) -> list[tf.Tensor]:
    # The grid is as square as can be; a prime number of replicas gives one row.
    num_rows = next(rows for rows in range(math.isqrt(len(devices)), 0, -1) if len(devices) % rows == 0)
    num_columns = len(devices) // num_rows
    halves = [_call(device, _halves, tensors) for device, tensors in zip(devices, bucket)]
    row, column = divmod(_position(devices, owner), num_columns)
    first, second = ([(device, half[index]) for device, half in zip(devices, halves)] for index in range(2))
    first = _along_rows(_grid(first, num_columns), row, column)
    second = _along_rows(list(zip(*_grid(second, num_columns))), column, row)
    return _call(owner, _whole, first, second, bucket[0])


def _grid(entries: list, num_columns: int) -> list[list]:
    return [entries[start:start + num_columns] for start in range(0, len(entries), num_columns)]


def _along_rows(grid: list, row: int, column: int) -> list[tf.Tensor]:
    """Sum each row into its entry at `column`, then this column into its entry at `row`."""
    entries = [(line[column][0], _chain(line, column)) for line in grid]
    return _chain(entries, row)


def _chain(entries: list, last: int) -> list[tf.Tensor]:
    """Sum tensors from device to device, ending at entry number `last`."""
    (_, total), *rest = entries[last + 1:] + entries[:last + 1]
    for device, tensors in rest:
        total = _call(device, _add_up, [total, tensors])
    return total


def _nccl(bucket: list, devices: Sequence[str], owner: str) -> list[tf.Tensor]:
    sums = []
    for tensors in zip(*bucket):
        parts = [_call(device, tf.identity, each) for device, each in zip(devices, tensors)]
        placed = distributed_values.PerReplica(parts)
        reduced = tf.distribute.NcclAllReduce(num_packs=1).reduce(tf.distribute.ReduceOp.SUM, placed, placed)
        sums.append(reduced.values[_position(devices, owner)])
    return sums


def _position(devices: Sequence[str], owner: str) -> int:
    """Return the position of `owner` in `devices`, or 0."""
    return devices.index(owner) if owner in devices else 0  # if another stage owns the weight, any position works


def _call(device: str, function: Callable, *arguments: Any) -> Any:
    with tf.device(device):
        return device_kinds.one_call(device, function)(*arguments)


def _add_up(rows: list) -> list[tf.Tensor]:
    return [functools.reduce(tf.add, column) for column in zip(*rows)]


def _halves(tensors: list) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    flat = [tf.reshape(tensor, [-1]) for tensor in tensors]
    return [each[:each.shape[0] // 2] for each in flat], [each[each.shape[0] // 2:] for each in flat]


def _whole(first: list, second: list, like: list) -> list[tf.Tensor]:
    return [tf.reshape(tf.concat(pair, 0), tensor.shape) for *pair, tensor in zip(first, second, like)]


_METHODS = {'add': _add, 'nccl': _nccl, 'ring': _ring, 'two_dimensional': _two_dimensional}
METHODS = ('auto', *_METHODS)


class Replica(NamedTuple):
    """The replica and the micro-batch for which a layer computes."""

    num_replicas: int
    stage: int  # a number of `stage_numbers`; the devices of this stage compute the sums
    index: tf.Tensor  # int64 scalar, the number of the replica
    micro_batch: tf.Tensor  # int64 scalar, the number of the micro-batch in the replica
    is_compiled: bool  # whether XLA compiles the stage; if so, `Group.sum_inside_program` computes the sums


@contextlib.contextmanager
def working_for(replica: Replica | None) -> Iterator[None]:
    """Let `sum_over_group` use `replica` inside the `with` block. None: there is only one replica."""
    outer = _replica()
    _local.replica = replica
    try:
        yield
    finally:
        _local.replica = outer


def equal_groups(group_size: int, num_replicas: int) -> int:
    """Return the smaller of `group_size` and `num_replicas`. Raise ValueError if groups would be unequal."""
    group_size = min(group_size, num_replicas)
    if num_replicas % group_size:
        sizes = [size for size in range(1, num_replicas + 1) if num_replicas % size == 0]
        raise ValueError(
            f'group_size={group_size} does not divide num_replicas={num_replicas}: groups of replicas must be equal. '
            f'Set it to one of {sizes}.')
    return group_size


def sum_over_group(tensor: tf.Tensor, group_size: int) -> tf.Tensor:
    """Sum a tensor over a group of consecutive replicas. The backward pass sums the gradient over the same replicas.

    The replicas wait for each other, and must follow the same schedule.

    Args:
        tensor: float32 tensor of a known shape.
        group_size: number of replicas in a group. If there are fewer replicas, they form one group.

    Raises:
        ValueError: the groups are not equal, or XLA compiles each replica separately.
    """
    replica = _replica()
    if replica is None or group_size == 1:
        return tensor
    group_size = equal_groups(group_size, replica.num_replicas)
    if replica.is_compiled:
        return current().sum_inside_program(tensor, group_size)
    return _sum_between_functions(tensor, group_size, replica)


def _sum_between_functions(tensor: tf.Tensor, group_size: int, replica: Replica) -> tf.Tensor:
    """Sum over replicas that run separate functions, by a collective operation of TensorFlow's runtime."""
    # A key is unique in a step. It is the same in all replicas: micro-batch 0 is summed with micro-batch 0.
    keys = [tf.cast(next(_calls) * MOST_MICRO_BATCHES + replica.micro_batch, tf.int32) for _ in range(2)]
    groups = _groups.setdefault((replica.stage, group_size), len(_groups) + 1)
    group = tf.cast(groups * _MOST_GROUPS + replica.index // group_size, tf.int32)

    @tf.custom_gradient
    def total(tensor: tf.Tensor) -> tf.Tensor:
        def gradient(upstream: Any) -> tf.Tensor:
            return _all_reduce(upstream, group_size, group, keys[1])

        return _all_reduce(tensor, group_size, group, keys[0]), gradient

    return total(tensor)


def _all_reduce(tensor: tf.Tensor, group_size: int, group: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.CollectiveReduceV2(  # no timeout: TensorFlow would keep a thread until the timeout ends
        input=tensor, group_size=group_size, group_key=group, instance_key=key, ordering_token=[], merge_op='Add',
        final_op='Id')


def _replica() -> Replica | None:
    return getattr(_local, 'replica', None)
