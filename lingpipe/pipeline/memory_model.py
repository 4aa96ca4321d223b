"""The memory of a partition at the fullest moment of its work.

That moment lies in a backward pass, at some layer i::

    layers of the partition                 0 ... i-1            i                            i+1 ...
    weights, slots, old gradient sums       yes                  yes                          yes
    kept by the micro-batch at work
      recompute='none', 'stage'             yes                  yes                          yes: arguments of the backward
                                                                                              function, held until it ends
      recompute='layer'                     inputs               inputs                       no
    the layer at work                                            its backward pass, after
                                                                 its forward one with 'layer'
    new gradient sums                                            among it                     yes, but not with 'layer'
    kept by other micro-batches             by schedule and recomputation

All of it is counted from traced graphs, see `layer_memory`.
"""

import numpy as np

from lingpipe.pipeline.layer_memory import LayerMemory


class MemoryModel:
    """Bytes that any run of layers needs as a partition, as `partition.balanced_partition_ends` asks for them.

    A run counts no less than its last layers alone would, even where it has smaller inputs to keep: then a longer run never
    needs less, which the search for the best cut relies on.

    Args:
        memories: list of `LayerMemory`.
        live_micro_batches: for each partition, the most micro-batches whose activations it keeps at once, as
            `live_micro_batches` finds them. Where a later partition keeps more, an earlier one counts as many.
        recompute: 'none', 'stage' or 'layer'.
        num_slots: tensors that a device keeps for each weight in the optimizer: 0 for SGD, 1 with momentum, 2 for Adam, one more for
            moving averages of the weights.
    """

    def __init__(self, memories, live_micro_batches, recompute, num_slots):
        columns = LayerMemory(*np.array(memories, np.int64).T)
        live = np.maximum.accumulate(np.array(live_micro_batches)[::-1])[::-1, np.newaxis]
        kept = columns.read_inputs - columns.repeated_reads + columns.internals + columns.read_outputs
        lasting = 2 * columns.weights + np.ceil(num_slots * columns.weights).astype(np.int64) + columns.state
        if recompute == 'layer':
            passing, at_work, new_sums = columns.inputs - columns.repeated_inputs, columns.recomputed, 0 * columns.weights
            entering = (live - 1) * columns.inputs + columns.repeated_inputs
        else:
            passing, at_work, new_sums = 0 * kept, columns.backward, columns.weights
            copies = live if recompute == 'none' else 1
            lasting = lasting + copies * kept
            entering = copies * columns.repeated_reads + (live - copies) * columns.inputs
        self._lasting = _prefix_sums(lasting + 0 * live)
        self._passing, self._new_sums = _prefix_sums(passing), _prefix_sums(new_sums)
        self._fullest_start = RangeMaximum(entering - self._lasting[:, :-1] - self._passing[:-1])
        self._fullest_layer = RangeMaximum((self._passing[1:] + at_work - self._new_sums[1:])[np.newaxis])

    def __call__(self, partitions, starts, ends):
        """Returns the bytes of partitions that hold layers `start` to `end - 1`.

        Args:
            partitions: array of indices of partitions.
            starts: array of indices of their first layers.
            ends: array of indices that follow their last layers, greater than `starts`.
        """
        return (self._lasting[partitions, ends] + self._fullest_start(partitions, starts, ends)
                + self._fullest_layer(0, starts, ends) + self._new_sums[ends])


class RangeMaximum:
    """The largest of `values[row, start:end]` for whole arrays of rows, starts and ends.

    Level j of the table holds the maximum of the 2^j values from each place on; two such runs cover any range.

    Args:
        values: array `[rows, columns]`.
    """

    def __init__(self, values):
        self._table = [values]
        while (width := 2 ** len(self._table)) <= values.shape[1]:
            level = self._table[-1].copy()
            level[:, :-width // 2] = np.maximum(level[:, :-width // 2], level[:, width // 2:])
            self._table.append(level)
        self._table = np.stack(self._table)

    def __call__(self, rows, starts, ends):
        levels = np.frexp(ends - starts)[1] - 1
        return np.maximum(self._table[levels, rows, starts], self._table[levels, rows, ends - (1 << levels)])


def _prefix_sums(values):
    return np.concatenate([np.zeros_like(values[..., :1]), np.cumsum(values, axis=-1)], axis=-1)
