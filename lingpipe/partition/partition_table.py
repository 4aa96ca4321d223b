"""Which layers make up each partition, where it lives and what it costs."""

import collections
from typing import NamedTuple

import numpy as np

from lingpipe.partition import exact_cut, memory_model

# Forward passes that are done again; 'layer' finds the inputs of all layers of a stage, then each layer's internals. The
# first one is saved where a B directly follows its own F.
_EXTRA_FORWARDS = {'none': 0, 'stage': 1, 'layer': 2}
_SAVED_FORWARDS = {'none': 0, 'stage': 1, 'layer': 1}

# A backward pass computes two gradients where the forward pass computes one product.
_FLOPS_OF_BACKWARD = 2


class Partition(NamedTuple):
    """One contiguous run of layers and where it lives.

    Attributes:
        layer_names: names of its layers.
        device: name of its device.
        num_parameters: number of trainable parameters.
        flops: floating-point operations of the forward pass of one example.
        seconds: measured time of the forward and backward pass of one micro-batch; None where none was measured.
        memory: bytes that it needs, by estimate; None where none was made.
    """

    layer_names: list
    device: str
    num_parameters: int
    flops: int
    seconds: float | None = None
    memory: int | None = None


def extra_forwards(schedule, recompute):
    """Counts the forward passes that each stage does again, which may make it slower than its neighbours.

    Args:
        schedule: `Schedule`. Less is recomputed where a B directly follows its own F, as for all micro-batches in 1F1B's
            last stage, and for one of them in every stage of GPipe.
        recompute: 'none', 'stage' or 'layer'.

    Returns:
        List of numbers, one a stage: the mean over the micro-batches.
    """
    kept = collections.Counter(action.stage for action in schedule.backwards_after_own_forward())
    return [_EXTRA_FORWARDS[recompute] - _SAVED_FORWARDS[recompute] * kept[stage] / schedule.num_micro_batches
            for stage in range(schedule.num_stages)]


def layer_costs(analyses, partition_by, layer_times=None, extra_forwards=(0,)):
    """Returns what the cut balances.

    Args:
        analyses: list of `LayerAnalysis`.
        partition_by: 'flops', 'time' or 'params'.
        layer_times: list of `layer_profile.LayerTime`; for 'time' alone.
        extra_forwards: for each partition, the number of forward passes that it does again for a micro-batch.

    Returns:
        Array `[partitions, layers]`: seconds, floating-point operations or parameters.
    """
    if partition_by == 'params':
        return np.array([[layer.num_parameters for layer in analyses]])
    if partition_by == 'time':
        forward, backward, _ = np.array(layer_times).T
    else:
        forward = np.array([layer.flops.total for layer in analyses])
        backward = _FLOPS_OF_BACKWARD * forward
    return (1 + np.array(extra_forwards)[:, np.newaxis]) * forward + backward


def partition_ends(analyses, num_partitions, partition_by, layer_times=None, extra_forwards=(0,), memory=None,
                   memory_limit=None, num_devices=None):
    """Cuts analysed layers into partitions.

    Args:
        analyses: list of `LayerAnalysis`.
        num_partitions: K; K V with V stages on each device.
        partition_by: 'flops', 'time', 'params', or a list of end indices.
        layer_times: see `layer_costs`.
        extra_forwards: see `layer_costs`.
        memory: see `partition.balanced_partition_ends`.
        memory_limit: bytes of one device, which a written list of end indices must keep to as well; None: no limit.
        num_devices: K where devices hold several stages; None: each partition has its own device.

    Returns:
        List of ascending end indices.

    Raises:
        ValueError: when no cut, or not the written one, is possible.
    """
    if isinstance(partition_by, str):
        costs = layer_costs(analyses, partition_by, layer_times, extra_forwards)
        return exact_cut.balanced_partition_ends(costs, num_partitions, memory, memory_limit, num_devices)
    ends = exact_cut.validate_partition_ends(partition_by, len(analyses), num_partitions)
    if memory_limit is not None:
        memory_model.MemoryBudget(
            memory, memory_limit, len(analyses), num_partitions, num_devices or num_partitions).require(ends)
    return ends


def describe_partitions(analyses, ends, devices, layer_times=None, memory=None):
    """Sums up each partition.

    Args:
        analyses: list of `LayerAnalysis`.
        ends: list of end indices.
        devices: list of device names, one a partition.
        layer_times: list of `layer_profile.LayerTime`, or None.
        memory: `memory_model.MemoryModel`, or None.

    Returns:
        List of `Partition`.
    """
    starts = [0, *ends[:-1]]
    needed = [None] * len(ends) if memory is None else memory(np.arange(len(ends)), np.array(starts), np.array(ends)).tolist()
    return [
        Partition(
            [layer.name for layer in analyses[start:end]], device,
            sum(layer.num_parameters for layer in analyses[start:end]),
            sum(layer.flops.total for layer in analyses[start:end]),
            None if layer_times is None else sum(time.seconds for time in layer_times[start:end]), num_bytes)
        for start, end, device, num_bytes in zip(starts, ends, devices, needed)]
