"""Which cores of a TPU system form a replica, so that neighbouring stages are neighbours in the torus."""

import itertools
import math

import tensorflow as tf

_DIMENSIONS = 'x, y, z, cores of a chip'


def assign_cores(topology, num_stages, make=tf.tpu.experimental.DeviceAssignment.build):
    """Assigns as many replicas as fit, each a box of cores, one a stage.

    Args:
        topology: `tf.tpu.experimental.Topology`.
        num_stages: K, the number of cores of a replica.
        make: function that builds the assignment from a topology, a computation shape and a number of replicas.

    Returns:
        `tf.tpu.experimental.DeviceAssignment`.

    Raises:
        ValueError: K cores do not form a box that the system can be filled with.
    """
    mesh = [int(size) for size in topology.mesh_shape]
    shape = computation_shape(mesh, num_stages)
    return make(topology, computation_shape=shape, num_replicas=math.prod(mesh) // num_stages)


def computation_shape(mesh, num_stages):
    """Chooses the box of K cores in which the way from stage to stage is shortest.

    Cores of one chip come first, then the box with the shortest sides: all its cores are then near each other::

        4 stages in a 4x4x1 torus of chips with 2 cores     2 chips side by side: [2, 1, 1, 2]

    Args:
        mesh: sizes of the system `[x, y, z, cores of a chip]`.
        num_stages: K.

    Returns:
        List of the sizes of the box, in the order of `mesh`.

    Raises:
        ValueError: no box of K cores divides the mesh.
    """
    divisors = [[size for size in range(1, limit + 1) if limit % size == 0] for limit in mesh]
    boxes = [box for box in itertools.product(*divisors) if math.prod(box) == num_stages]
    if not boxes:
        possible = sorted({math.prod(box) for box in itertools.product(*divisors)})
        raise ValueError(
            f'num_partitions={num_stages} cores do not fill a TPU system of {mesh} ({_DIMENSIONS}): a replica must be a box that '
            f'divides it. Set num_partitions to one of {possible}.')
    return list(min(boxes, key=lambda box: (-box[-1], sum(box), max(box))))
