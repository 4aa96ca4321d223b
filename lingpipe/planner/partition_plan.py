"""What one partition of a plan holds: its layers, and the bytes of its device by kind."""

from typing import NamedTuple

KINDS = ('weights', 'slots', 'gradients', 'boundary', 'working', 'transient')


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
        working: what else the backward pass reads, and the outputs of the layer at work with their gradients.
        transient: what else is there for a moment, see `memory_model`.
    """

    layer_names: list
    num_parameters: int
    flops: int
    weights: int
    slots: int
    gradients: int
    boundary: int
    working: int
    transient: int

    @property
    def total(self):
        """Bytes of all kinds."""
        return sum(getattr(self, kind) for kind in KINDS)


def plan_partition(analyses, memories, num_live, recompute, num_slots, transient):
    """Sums up the layers of one partition.

    Args:
        analyses: list of `LayerAnalysis` of its layers.
        memories: list of their `LayerMemory` for one micro-batch.
        num_live: the most micro-batches whose activations it keeps at once.
        recompute: 'none', 'stage' or 'layer'.
        num_slots: tensors that the optimizer keeps for each weight.
        transient: bytes that are there for a moment.
    """
    weights = sum(layer.weights for layer in memories)
    inside = sum(layer.inputs for layer in memories[1:])
    internals = sum(layer.internals for layer in memories)
    kept = inside + (0 if recompute == 'layer' else internals)
    at_work = max(2 * layer.outputs + (layer.internals if recompute == 'layer' else 0) for layer in memories)
    return PartitionPlan(
        layer_names=[layer.name for layer in analyses],
        num_parameters=sum(layer.num_parameters for layer in analyses),
        flops=sum(layer.flops.total for layer in analyses),
        weights=weights + sum(layer.state for layer in memories), slots=num_slots * weights, gradients=weights,
        boundary=num_live * memories[0].inputs, working=kept * (num_live if recompute == 'none' else 1) + at_work,
        transient=transient)
