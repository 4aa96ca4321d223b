"""The memory of a partition while it works: what has to be kept, and what else is there for a moment.

`layer_memory.MemoryEstimate` counts tensors that must be there. A measured peak is higher, by what lives for a moment::

    of the partition   a quarter of what the micro-batch at work keeps: parts of its backward pass that need no gradient are
                       computed for all layers as soon as the pass begins (not with recompute='layer': there of the layer only)
    of the layer       gradients of half of its internals, and its new weight gradients, before the old sums are freed
    at the end         the new sums of all weight gradients beside the old ones, once activations have been freed

The two fractions are fitted to `benchmarks/planner_accuracy.py`; all else is counted from traced graphs.
"""

import numpy as np

from lingpipe.pipeline import layer_memory
from lingpipe.pipeline.layer_memory import LayerMemory

_EARLY, _OF_LAYER = 0.25, 0.5


class MemoryModel:
    """Bytes that any run of layers needs as a partition, as `partition.balanced_partition_ends` asks for them.

    Args:
        memories: list of `LayerMemory`.
        live_micro_batches: see `MemoryEstimate`.
        recompute: 'none', 'stage' or 'layer'.
        num_slots: tensors that the optimizer keeps for each weight.
    """

    def __init__(self, memories, live_micro_batches, recompute, num_slots):
        self._estimate = layer_memory.MemoryEstimate(memories, live_micro_batches, recompute, num_slots)
        columns = LayerMemory(*np.array(memories, np.int64).T)
        by_layer = recompute == 'layer'
        of_partition = columns.inputs + columns.internals if not by_layer else 0 * columns.inputs
        of_layer = (_OF_LAYER + (_EARLY if by_layer else 0)) * columns.internals + columns.weights
        self._early = _prefix_sums(_EARLY * of_partition)
        self._of_layer = layer_memory.RangeMaximum(of_layer[np.newaxis])
        self._weights = _prefix_sums(columns.weights)
        self._activations = _prefix_sums(columns.inputs if by_layer else columns.inputs + columns.internals)
        self._at_work = layer_memory.RangeMaximum(
            (2 * columns.outputs + (columns.internals if by_layer else 0))[np.newaxis])

    def __call__(self, partitions, starts, ends):
        """Returns the bytes of partitions that hold layers `start` to `end - 1`; the arguments are arrays of integers."""
        return self._estimate(partitions, starts, ends) + self.transient(starts, ends)

    def transient(self, starts, ends):
        """Returns the part that is there for a moment; arguments as above."""
        within = self._early[ends] - self._early[starts] + self._of_layer(0, starts, ends)
        freed = self._activations[ends] - self._activations[starts] + self._at_work(0, starts, ends)
        at_end = self._weights[ends] - self._weights[starts] - freed
        return np.ceil(np.maximum(within, at_end)).astype(np.int64)


def _prefix_sums(values):
    return np.concatenate([[0], np.cumsum(values)])
