"""What `SpmdCores` is inside of a program, in operations that TensorFlow has for CPUs too."""

import numpy as np
import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops
from tensorflow.python.compiler.xla.experimental import xla_sharding

from lingpipe.devices import collectives


class XlaReplicas(collectives.Group):
    """R replicas of a program."""

    def __init__(self, num_replicas):
        self.count = num_replicas

    def sum(self, device, tensors):
        return tf.nest.map_structure(lambda tensor: _sum(tensor, self.count, self.count), tensors)

    def sum_inside_program(self, tensor, group_size):
        @tf.custom_gradient
        def total(tensor):
            return _sum(tensor, self.count, group_size), lambda upstream: _sum(upstream, self.count, group_size)

        return total(tensor)

    def index_on(self, device):
        return tf.cast(gen_xla_ops.xla_replica_id(), tf.int64)


def _sum(tensor, num_replicas, group_size):
    groups = np.arange(num_replicas, dtype=np.int32).reshape(-1, group_size)
    return gen_xla_ops.xla_all_reduce(tensor, groups, 'Add', 'CrossReplica')


def on_all_cores(function):
    """Return a function whose arguments and results every core has whole, since jaxlib knows no others for
    replicas."""
    def whole(*tensors):
        return tf.nest.map_structure(lambda tensor: xla_sharding.replicate(tensor, use_sharding_op=True), tensors)

    return lambda *arguments: whole(*function(*whole(*arguments)))
