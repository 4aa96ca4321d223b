"""From sums over the mini-batch to the gradients of its mean loss: one small function a stage, on the stage's device."""

from typing import NamedTuple

import tensorflow as tf

from lingpipe.distribute import across_replicas, device_calls, variable_placement


class StageGradients(NamedTuple):
    """What the weights of one stage on one device contribute to the update.

    Attributes:
        variables: list of the trainable Keras variables.
        gradients: list of tensors, one a variable.
        regularization: scalar, the sum of their regularisers.
        squared_norm: scalar, the sum of squares of all gradients; the one number that clipping needs from each stage.
    """

    variables: list
    gradients: list
    regularization: tf.Tensor
    squared_norm: tf.Tensor


def finish(stages, values, sums, total_weight):
    """Turns sums into gradients of the mean loss, on the devices where the weights live.

    A variable that several stages use belongs to the first of them: the others send it their sums.

    Args:
        stages: list of `Stage`s.
        values: list of `Variables` of tensors, one a stage.
        sums: for each stage, the list of gradients of its weights, summed over the examples.
        total_weight: scalar, what the loss is divided by: the weight of all replicas' examples.

    Returns:
        List of `StageGradients`, for every stage one a device that has weights of it.
    """
    positions = {}
    for stage in stages:
        for position, variable in enumerate(stage.trainable_variables):
            positions.setdefault(id(variable), []).append((stage.index, position))
    finished = []
    for stage, value in zip(stages, values):
        entries = {}
        for variable, weight in zip(stage.trainable_variables, value.weights):
            places = positions[id(variable)]
            if places[0][0] == stage.index:
                parts = [sums[index][position] for index, position in places]
                entries.setdefault(variable_placement.owner(variable, [stage.device]), []).append((variable, weight, parts))
        finished += [_finish(device, *map(list, zip(*rows)), total_weight) for device, rows in entries.items()]
    return finished


def _add(tensors):
    return tf.add_n(tensors) if len(tensors) > 1 else tensors[0]


def _finish(device, variables, weights, parts, total_weight):
    """Adds up the parts of every sum and all replicas, divides by the total weight, and adds regularisers, once a step."""

    def regularize(weights):
        terms = [variable.regularizer(weight) for variable, weight in zip(variables, weights) if variable.regularizer]
        return tf.add_n(terms) if terms else tf.zeros([])

    def divide_and_regularize(weights, parts, total_weight):
        sums = across_replicas.sum_over_replicas(device, [_add(list(tensors)) for tensors in parts])
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights)
            regularization = regularize(weights)
        extra = tape.gradient(regularization, weights)
        gradients = [tf.math.divide_no_nan(total, tf.cast(total_weight, total.dtype)) for total in sums]
        gradients = [mean if more is None else mean + more for mean, more in zip(gradients, extra)]
        halves = [tf.nn.l2_loss(tf.cast(gradient, tf.float32)) for gradient in gradients]
        return gradients, tf.cast(regularization, tf.float32), 2.0 * tf.add_n(halves) if halves else tf.zeros([])

    with tf.device(device):
        return StageGradients(variables, *device_calls.one_call(device, divide_and_regularize)(weights, parts, total_weight))
