"""From sums over the mini-batch to the gradients of its mean loss: one small function a stage, on the stage's device."""

import collections
from typing import NamedTuple

import tensorflow as tf

from lingpipe.devices import collectives, device_kinds, variable_placement
from lingpipe.pipeline import step_sums


class StageGradients(NamedTuple):
    """What the weights of one stage on one device contribute to the update.

    Attributes:
        variables: list of the trainable Keras variables.
        gradients: list of tensors, one a variable; `tf.IndexedSlices` as in Keras where rows were looked up.
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
        sums: `step_sums.Sums`, over the examples.
        total_weight: scalar, what the loss is divided by: the weight of all replicas' examples.

    Returns:
        List of `StageGradients`, for every stage one a device that has weights of it. They lack the variables that neither the
        loss nor a regulariser depends on.
    """
    parts = collections.defaultdict(list)
    for variables, tensors in zip(sums.weights, sums.weight_gradients):
        for variable, tensor in zip(variables, tensors):
            parts[id(variable)].append(tensor)
    finished, seen = [], set()
    for stage, value in zip(stages, values):
        entries = collections.defaultdict(list)
        for variable, weight in zip(stage.variables().weights, value.weights):
            if id(variable) not in seen and (parts[id(variable)] or variable.regularizer):
                device = variable_placement.owner(variable, [stage.device])
                entries[device].append((variable, weight, parts[id(variable)]))
            seen.add(id(variable))
        finished += [_finish(device, *map(list, zip(*rows)), total_weight) for device, rows in entries.items()]
    return finished


def _over_all_replicas(device, totals):
    group = collectives.current()
    if group.count == 1:
        return totals
    sums = iter(group.sum(device, [tf.convert_to_tensor(total) for total in totals if total is not None]))
    return [None if total is None else next(sums) for total in totals]


def _mean(total, weight, total_weight):
    """Returns a sum of gradients over the total weight; 0 where only a regulariser depends on the weight."""
    if total is None:
        return tf.zeros_like(weight)
    mean = tf.math.divide_no_nan(_numbers(total), tf.cast(total_weight, total.dtype))
    return tf.IndexedSlices(mean, total.indices, total.dense_shape) if isinstance(total, tf.IndexedSlices) else mean


def _numbers(gradient):
    """Returns the numbers that there are, of which a norm in Keras is made."""
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def _finish(device, variables, weights, parts, total_weight):
    """Adds up the parts of every sum and all replicas, divides by the total weight, and adds regularisers, once a step."""

    def regularize(weights):
        terms = [variable.regularizer(weight) for variable, weight in zip(variables, weights) if variable.regularizer]
        return tf.add_n(terms) if terms else tf.zeros([])

    def divide_and_regularize(weights, parts, total_weight):
        totals = [step_sums.total(each, variable.shape) if each else None for each, variable in zip(parts, variables)]
        totals = _over_all_replicas(device, totals)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights)
            regularization = regularize(weights)
        extra = tape.gradient(regularization, weights)
        gradients = [_mean(total, weight, total_weight) for total, weight in zip(totals, weights)]
        gradients = [mean if more is None else tf.convert_to_tensor(mean) + more for mean, more in zip(gradients, extra)]
        halves = [tf.nn.l2_loss(tf.cast(_numbers(gradient), tf.float32)) for gradient in gradients]
        return gradients, tf.cast(regularization, tf.float32), 2.0 * tf.add_n(halves) if halves else tf.zeros([])

    with tf.device(device):
        return StageGradients(variables, *device_kinds.one_call(device, divide_and_regularize)(weights, parts, total_weight))
