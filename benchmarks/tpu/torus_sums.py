"""Programs that add up gradients over all cores of a TPU slice: by one all-reduce, and in two dimensions by hand.

A core is one replica. Where it is on the torus tell coordinates (x, y, z, core of the chip), in the order of the
replicas. TensorFlow has no all-gather for XLA, so that one is written in StableHLO.
"""

import math

import numpy as np
import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops

from lingpipe.tools.tpu_compile import stable_hlo

# Rows of a matrix that a core keeps after a reduce-scatter. A vector the TPU's compiler adds up as a whole and cuts it
# afterwards, for v3 a matrix with half as many rows too.
_ROWS = 32
_COLUMNS = 128  # a multiple of it fills tiles
_CALL_MODULE_VERSION = 9  # of the form in which an operation of TensorFlow holds StableHLO


def axes(coordinates):
    """Groups replicas for two dimensions, in both orders.

    Args:
        coordinates: list of `(x, y, z, core of the chip)`, one a replica.

    Returns:
        The pair of pairs ((along x, along y), (along y, along x)) of int32 arrays `[groups, replicas of each]`. All
        cores of a line of chips are a group of the first dimension, those with one number of the second.
    """
    return ((_groups(coordinates, 1), _groups(coordinates, 0, 3)),
            (_groups(coordinates, 0), _groups(coordinates, 1, 3)))


def _groups(coordinates, *same):
    """Groups the replicas whose coordinates in some places are the same."""
    found = {}
    for replica, place in enumerate(coordinates):
        found.setdefault(tuple(place[index] for index in same), []).append(replica)
    return np.array(list(found.values()), np.int32)


def plain(shapes, coordinates):
    """Returns the program, as StableHLO, that sums tensors by an all-reduce of each over all replicas.

    Args:
        shapes: list of shapes of float32 tensors.
        coordinates: see `axes`.
    """
    everyone = np.arange(len(coordinates), dtype=np.int32)[None]
    return _lower(lambda tensors: [_all_reduce(tensor, everyone) for tensor in tensors], shapes)


def two_dimensional(shapes, coordinates, num_parts):
    """Returns the program, as StableHLO, that sums tensors by reduce-scatter, all-reduce and all-gather.

    Ying et al. 2018, arXiv 1811.06992: a reduce-scatter along one dimension, an all-reduce of what it leaves along the
    other, an all-gather along the first. All tensors are packed into one.

    Args:
        shapes: list of shapes of float32 tensors.
        coordinates: see `axes`.
        num_parts: 1: along x first; 2: half of the tensor so, the other half along y first.
    """
    orders = axes(coordinates)[:num_parts]

    def sums(tensors):
        flat = tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)
        size = -(-flat.shape[0] // num_parts)
        parts = tf.split(tf.pad(flat, [[0, num_parts * size - flat.shape[0]]]), num_parts)
        total = tf.concat([_sum(part, *order) for part, order in zip(parts, orders)], 0)[:flat.shape[0]]
        return [tf.reshape(part, shape) for part, shape in zip(tf.split(total, list(map(math.prod, shapes))), shapes)]

    return _lower(sums, shapes)


def _lower(function, shapes):
    return stable_hlo.lower(function, [tf.TensorSpec(shape) for shape in shapes])


def _sum(flat, first, second):
    rows = _ROWS * first.shape[1]
    columns = -(-flat.shape[0] // (rows * _COLUMNS)) * _COLUMNS
    matrix = tf.reshape(tf.pad(flat, [[0, rows * columns - flat.shape[0]]]), [rows, columns])
    own = gen_xla_ops.xla_reduce_scatter(matrix, first, 0, 'Add')
    whole = _all_gather(_all_reduce(own, second), first)
    return tf.reshape(whole, [-1])[:flat.shape[0]]


def _all_reduce(tensor, groups):
    return gen_xla_ops.xla_all_reduce(tensor, groups, 'Add', 'CrossReplica')


def _all_gather(matrix, groups):
    rows, columns = matrix.shape
    num_groups, size = groups.shape
    given, result = (f'tensor<{count}x{columns}xf32>' for count in (rows, rows * size))
    module = f'''module {{
      func.func @main(%own: {given}) -> {result} {{
        %whole = "stablehlo.all_gather"(%own) <{{
          all_gather_dim = 0 : i64, replica_groups = dense<{groups.tolist()}> : tensor<{num_groups}x{size}xi64>
        }}> : ({given}) -> {result}
        return %whole : {result}
      }}
    }}'''
    whole, = gen_xla_ops.xla_call_module(
        [matrix], version=_CALL_MODULE_VERSION, module=module, Sout=[[rows * size, columns]], Tout=[tf.float32],
        platforms=['CPU'])  # where TensorFlow translates it; what is inside is the same for all
    return tf.ensure_shape(whole, [rows * size, columns])
