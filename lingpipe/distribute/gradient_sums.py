"""Adding up the gradients of replicas, on the devices where the weights live."""

import functools
import math

import tensorflow as tf
from tensorflow.python.distribute import values as distributed_values

from lingpipe.distribute import device_calls, device_kinds

METHODS = ('auto', 'add', 'nccl', 'ring', 'two_dimensional')


class GradientSum:
    """Sums lists of tensors over replicas.

    Every weight has an owner, the device that it lives on, and the owners of a stage's weights are its devices in all replicas.
    Each method brings the sums of a weight to its owner; the chains of different owners run at the same time, so that all
    links are busy::

        add               0 1 2 3 ──> owner, which adds up all of them
        ring              owner+1 ─> owner+2 ─> ... ─> owner; on the way every device adds its own
        two_dimensional   half of each tensor:  along the owner's row last     0 ─> 1      the other half with the axes
                          (chains in all columns, then one in the row)         |    |      swapped: both directions of a torus
                                                                               v    v      are busy
                                                                               2 ─> 3
        nccl              NVIDIA's all-reduce, by tf.distribute

    Args:
        method: one of `METHODS`; 'auto': 'nccl' where the replicas are different GPUs of one host, else 'add'.
    """

    def __init__(self, method='auto'):
        self._method = method

    def __call__(self, parts, devices, owners):
        """Lays out the sums of one stage in the current graph.

        Args:
            parts: for each replica, the list of its tensors; or None, where there are none.
            devices: list of the names of the replicas' devices.
            owners: list of device names, one a tensor: where its sum is wanted.

        Returns:
            List of the sums, or None.
        """
        if parts[0] is None or len(parts) == 1:
            return parts[0]
        sums = [None] * len(owners)
        for owner in dict.fromkeys(owners):
            places = [place for place, device in enumerate(owners) if device == owner]
            bucket = [[part[place] for place in places] for part in parts]
            for place, total in zip(places, self._sum_bucket(bucket, devices, owner)):
                sums[place] = total
        return sums

    def _sum_bucket(self, bucket, devices, owner):
        method = _best(devices) if self._method == 'auto' else self._method
        return {'add': _add, 'nccl': _nccl, 'ring': _ring, 'two_dimensional': _two_dimensional}[method](bucket, devices, owner)


def grid_shape(num_replicas):
    """Returns the numbers of rows and columns of the most nearly square grid of replicas; one row where the number is prime.

    Args:
        num_replicas: R.
    """
    num_rows = next(rows for rows in range(math.isqrt(num_replicas), 0, -1) if num_replicas % rows == 0)
    return num_rows, num_replicas // num_rows


def _best(devices):
    specs = [tf.DeviceSpec.from_string(device) for device in devices]
    one_host = len({(spec.job, spec.replica, spec.task) for spec in specs}) == 1
    is_gpus = all(device_kinds.kind_of(device) == 'GPU' for device in devices) and len(set(devices)) == len(devices)
    return 'nccl' if one_host and is_gpus else 'add'


def _add(bucket, devices, owner):
    return _call(owner, _add_up, bucket)


def _ring(bucket, devices, owner):
    return _chain(list(zip(devices, bucket)), _position(devices, owner))


def _two_dimensional(bucket, devices, owner):
    _, num_columns = grid_shape(len(devices))
    halves = [_call(device, _halves, tensors) for device, tensors in zip(devices, bucket)]
    row, column = divmod(_position(devices, owner), num_columns)
    first, second = ([(device, half[index]) for device, half in zip(devices, halves)] for index in range(2))
    first = _along_rows(_grid(first, num_columns), row, column)
    second = _along_rows(list(zip(*_grid(second, num_columns))), column, row)
    return _call(owner, _whole, first, second, bucket[0])


def _grid(entries, num_columns):
    return [entries[start:start + num_columns] for start in range(0, len(entries), num_columns)]


def _along_rows(grid, row, column):
    """Sums every row into the entry of a column, then that column into the entry of a row."""
    entries = [(line[column][0], _chain(line, column)) for line in grid]
    return _chain(entries, row)


def _chain(entries, last):
    """Sends a sum from one device to the next, round to the `last`; each adds its own.

    Args:
        entries: list of pairs (device, list of tensors).
        last: index of the entry that the sum is for.
    """
    (_, total), *rest = entries[last + 1:] + entries[:last + 1]
    for device, tensors in rest:
        total = _call(device, _add_up, [total, tensors])
    return total


def _nccl(bucket, devices, owner):
    sums = []
    for tensors in zip(*bucket):
        placed = distributed_values.PerReplica([_call(device, tf.identity, each) for device, each in zip(devices, tensors)])
        reduced = tf.distribute.NcclAllReduce(num_packs=1).reduce(tf.distribute.ReduceOp.SUM, placed, placed)
        sums.append(reduced.values[_position(devices, owner)])
    return sums


def _position(devices, owner):
    """A weight that stages share may live with another stage: any device will do for the last step but one."""
    return devices.index(owner) if owner in devices else 0


def _call(device, function, *arguments):
    with tf.device(device):
        return device_calls.one_call(device, function)(*arguments)


def _add_up(rows):
    return [functools.reduce(tf.add, column) for column in zip(*rows)]


def _halves(tensors):
    flat = [tf.reshape(tensor, [-1]) for tensor in tensors]
    return [each[:each.shape[0] // 2] for each in flat], [each[each.shape[0] // 2:] for each in flat]


def _whole(first, second, like):
    return [tf.reshape(tf.concat(pair, 0), tensor.shape) for *pair, tensor in zip(first, second, like)]
