"""The values of an SPMD pipeline's stages: tensors `[K, V, ...]`, V stages on each of K cores."""

import tensorflow as tf


def stacked(row):
    """Returns the present values of a row of `SpmdPipeline.stage_variables` as one tensor."""
    return tf.stack([tf.stack([variable.value.read_value() for variable in core]) for core in row])


def of_each(row, value):
    """Returns the list of pairs of a variable and its entry of a tensor `[K, V, ...]`."""
    return [(variable, value[core][round_]) for core, variables in enumerate(row)
            for round_, variable in enumerate(variables)]
