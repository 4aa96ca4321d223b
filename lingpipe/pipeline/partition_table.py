"""Which layers make up each partition, where it lives and what it costs."""

from typing import NamedTuple

from lingpipe.pipeline import partition


class Partition(NamedTuple):
    """One contiguous run of layers and where it lives.

    Attributes:
        layer_names: names of its layers.
        device: name of its device.
        num_parameters: number of trainable parameters.
        flops: floating-point operations of the forward pass of one example.
    """

    layer_names: list
    device: str
    num_parameters: int
    flops: int


def partition_ends(analyses, num_partitions, partition_by):
    """Cuts analysed layers into partitions.

    Args:
        analyses: list of `LayerAnalysis`.
        num_partitions: K.
        partition_by: 'flops', 'params', or a list of end indices.

    Returns:
        List of K ascending end indices.
    """
    if not isinstance(partition_by, str):
        return partition.validate_partition_ends(partition_by, len(analyses), num_partitions)
    costs = {'flops': [analysis.flops.total for analysis in analyses],
             'params': [analysis.num_parameters for analysis in analyses]}
    return partition.balanced_partition_ends(costs[partition_by], num_partitions)


def describe_partitions(analyses, ends, devices):
    """Sums up each partition.

    Args:
        analyses: list of `LayerAnalysis`.
        ends: list of end indices.
        devices: list of device names.

    Returns:
        List of `Partition`.
    """
    runs = [analyses[start:end] for start, end in zip([0] + ends[:-1], ends)]
    return [
        Partition([layer.name for layer in run], device, sum(layer.num_parameters for layer in run),
                  sum(layer.flops.total for layer in run))
        for run, device in zip(runs, devices)]
