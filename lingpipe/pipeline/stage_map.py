"""Running one function for every stage at once, each stage on a core of its own."""

import numpy as np
import tensorflow as tf
from tensorflow.python.compiler.xla.experimental import xla_sharding


class StageMap:
    """Applies a function to the slice of each stage; tensors have a first dimension with an entry for each of K stages.

    Partitioned, the program is for XLA's SPMD partitioner: every core runs the same program on its own slice, and inside the
    function XLA has nothing left to partition (GSPMD, arXiv 2105.04663, section 3.4, 'manual' sharding)::

        [K, ...]  ──>  core 0: [...] ─> function ─> [...]   ──>  [K, ...]
                       core 1: [...] ─> function ─> [...]
                         ...

    Otherwise one device does the same for one stage after the other.

    Args:
        num_stages: K.
        is_partitioned: whether the program is for K cores, else for one device.
    """

    def __init__(self, num_stages, is_partitioned):
        self.num_stages = num_stages
        self.is_partitioned = is_partitioned

    def __call__(self, function, tensors):
        """Returns the list of `[K, ...]` that `function`, from a list of tensors to a list of tensors, gives."""
        if not self.is_partitioned:
            rows = [function([tensor[index] for tensor in tensors]) for index in range(self.num_stages)]
            return [tf.stack(column) for column in zip(*rows)]
        return [self._leave(tensor) for tensor in function([self._enter(tensor)[0] for tensor in tensors])]

    def shard(self, tensor, dimension=0):
        """Asks the partitioner to give each core its part of a dimension that K divides."""
        if not self.is_partitioned:
            return tensor
        return xla_sharding.split(tensor, dimension, self.num_stages, use_sharding_op=True)

    def replicate(self, tensor):
        """Asks the partitioner to give each core the whole tensor, and its whole gradient."""
        return xla_sharding.replicate(tensor, use_sharding_op=True) if self.is_partitioned else tensor

    def _enter(self, tensor):
        return xla_sharding.auto_to_manual_spmd_partition(self.shard(tensor), self._sharding(tensor.shape.rank))

    def _leave(self, tensor):
        shape = [self.num_stages, *tensor.shape.as_list()]
        return self.shard(xla_sharding.manual_to_auto_spmd_partition(tensor[tf.newaxis], self._sharding(len(shape)), shape))

    def _sharding(self, rank):
        cores = np.arange(self.num_stages).reshape([self.num_stages] + [1] * (rank - 1))
        return xla_sharding.Sharding.tile(cores).proto.SerializeToString()
