"""The memory of a partition at the fullest moment of its work.

That moment lies in a backward pass, at some layer i: what the layers after it kept is free again, and the new sums of their
weight gradients are there beside the old ones::

    layers of the partition      0 ... i-1            i                            i+1 ...
    weights, slots, old sums     yes                  yes                          yes
    kept by this micro-batch     yes, and EARLY of it yes                          free again
    layer at work                                     outputs, their gradients,
                                                      AT_WORK of its internals
    new gradient sums                                 yes                          yes
    kept by other micro-batches  by schedule and recomputation

With recompute='layer' only inputs are kept, EARLY is of layer i's internals, and the new sums are those of layer i alone.

EARLY: tensors of layers before, which the allocator's record shows as soon as a backward pass begins. AT_WORK: gradients of what
a layer computes inside. Both shares are fitted by hand to `benchmarks/planner_accuracy.py`; all else is counted from traced graphs.
"""

import numpy as np

from lingpipe.pipeline.layer_memory import LayerMemory, RangeMaximum

_EARLY, _AT_WORK = 0.25, 0.75


class MemoryModel:
    """Bytes that any run of layers needs as a partition, as `partition.balanced_partition_ends` asks for them.

    Args:
        memories: list of `LayerMemory`.
        live_micro_batches: for each partition, the most micro-batches whose activations it keeps at once.
        recompute: 'none', 'stage' or 'layer'.
        num_slots: tensors that the optimizer keeps for each weight.
    """

    def __init__(self, memories, live_micro_batches, recompute, num_slots):
        columns = LayerMemory(*np.array(memories, np.int64).T)
        live = np.maximum.accumulate(np.array(live_micro_batches)[::-1])[::-1, np.newaxis]
        kept = columns.inputs if recompute == 'layer' else columns.read_inputs + columns.internals
        static = (2 + num_slots) * columns.weights + columns.state + (kept * (live - 1) if recompute == 'none' else 0 * live)
        waiting = (live - 1) * (0 * columns.inputs if recompute == 'none' else columns.inputs)
        if recompute == 'layer':
            early, inside, new_sums = 0 * kept, (1 + _EARLY + _AT_WORK) * columns.internals + columns.weights, 0 * columns.weights
        else:
            early, inside, new_sums = _EARLY * kept, _AT_WORK * columns.internals, columns.weights
        self._static, self._kept, self._new_sums = (_prefix_sums(values) for values in (static, kept + early, new_sums))
        self._fullest_start = RangeMaximum(waiting - self._static[:, :-1])
        self._fullest_layer = RangeMaximum((self._kept[:-1] + kept + 2 * columns.outputs + inside - self._new_sums[:-1])[np.newaxis])

    def __call__(self, partitions, starts, ends):
        """Returns the bytes of partitions that hold layers `start` to `end - 1`; the arguments are arrays of integers.

        As for `MemoryEstimate`, a run counts no less than its last layers alone would.
        """
        lasting = self._static[partitions, ends] + self._fullest_start(partitions, starts, ends)
        at_work = self._fullest_layer(0, starts, ends) - self._kept[starts] + self._new_sums[ends]
        return np.ceil(lasting + at_work).astype(np.int64)


def _prefix_sums(values):
    return np.concatenate([np.zeros_like(values[..., :1]), np.cumsum(values, axis=-1)], axis=-1)
