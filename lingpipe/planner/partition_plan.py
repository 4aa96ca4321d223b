"""What one partition of a plan holds: its layers, and the bytes of its device by kind."""

import math
from typing import NamedTuple

KINDS = ('weights', 'slots', 'gradients', 'boundary', 'working')


class PartitionPlan(NamedTuple):
    """One partition; all but `layer_names`, `num_parameters` and `flops` in bytes.

    Attributes:
        layer_names: names of its layers.
        num_parameters: number of trainable parameters.
        flops: floating-point operations of the forward pass of one example.
        weights: weights, and other variables such as moving averages.
        slots: what the optimizer keeps beside the weights.
        gradients: sums of weight gradients.
        boundary: inputs of the partition, for all micro-batches in flight.
        working: all other activations and gradients at the fullest moment, see `memory_model`.
    """

    layer_names: list
    num_parameters: int
    flops: int
    weights: int
    slots: int
    gradients: int
    boundary: int
    working: int

    @property
    def total(self):
        """Bytes of all kinds."""
        return sum(getattr(self, kind) for kind in KINDS)


def plan_partition(analyses, memories, num_live, recompute, num_slots, total):
    """Sums up the layers of one partition.

    Args:
        analyses: list of `LayerAnalysis` of its layers.
        memories: list of their `LayerMemory` for one micro-batch.
        num_live: the most micro-batches whose activations it keeps at once.
        recompute: 'none', 'stage' or 'layer'.
        num_slots: tensors that a device keeps for each weight in the optimizer.
        total: bytes that it needs, as `MemoryModel` says.
    """
    gradients = sum(layer.weights for layer in memories)
    weights, slots = gradients + sum(layer.state for layer in memories), math.ceil(num_slots * gradients)
    boundary = _boundary(memories[0], num_live, recompute)
    return PartitionPlan(
        layer_names=[layer.name for layer in analyses],
        num_parameters=sum(layer.num_parameters for layer in analyses),
        flops=sum(layer.flops.total for layer in analyses),
        weights=weights, slots=slots, gradients=gradients, boundary=boundary,
        working=total - weights - slots - gradients - boundary)


def _boundary(first, num_live, recompute):
    """The micro-batch at work needs the inputs only if its backward pass reads them, where others wait for recomputation."""
    if recompute == 'none':
        return num_live * first.read_inputs
    return (num_live - 1) * first.inputs + (first.inputs if recompute == 'layer' else first.read_inputs)
