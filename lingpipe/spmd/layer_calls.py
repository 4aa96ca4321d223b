"""Layers as functions of tensors in one program for all cores: the state that they may have, and what is refused."""

import collections
from typing import Any

import keras
import tensorflow as tf

from lingpipe.devices import collectives
from lingpipe.stages import batch_statistics, graph_pieces, stage_layers


def call(part: stage_layers.StageLayers, inputs: Any, values: stage_layers.Variables, step: tf.Tensor,
         seeds: tf.Tensor) -> tuple[Any, list[tf.Tensor]]:
    """Runs layers on a micro-batch, as in training.

    Args:
        part: the layers.
        inputs: nest of tensors `[micro_batch, ...]`.
        values: `Variables` of tensors.
        step: int64 scalar, the number of the step.
        seeds: int32 tensor `[own generators, 2]`.

    Returns:
        Nest of outputs, and the list of one tensor `[3, channels]`, the statistics of `trained_norms`, which is empty
        if there are none.

    Raises:
        ValueError: the layers do something that one program for all cores does not support.
    """
    weights = list(map(tf.identity, values.weights))  # in the graph of the layers, for `_refuse_unused`
    state = list(map(tf.stop_gradient, values.state))
    with collectives.working_for(_replica()):
        called = part.call(inputs, stage_layers.Variables(weights, state), step, part.given_seeds(seeds), training=True)
    _refuse_losses_and_changes(part, called)
    _refuse_unused(part, weights, called.outputs)
    return called.outputs, _statistics(part, called.scope.norm_calls)


def trained_norms(layers: list[keras.layers.Layer]) -> list[keras.layers.BatchNormalization]:
    """Returns the batch norms that normalise with the statistics of a micro-batch, in the order of their statistics."""
    return [norm for norm in batch_statistics.batch_norms(layers) if norm.trainable]


def _replica():
    """Returns the `collectives.Replica` for which layers compute; sums inside a program only need its count."""
    count = collectives.current().count
    return collectives.Replica(count, stage=0, index=None, micro_batch=None, is_compiled=True) if count > 1 else None


def _statistics(part, calls):
    norms = trained_norms(part.layers)
    counts = collections.Counter(id(each.norm) for each in calls)
    odd = [norm.name for norm in norms if counts[id(norm)] != 1]
    if odd:
        raise ValueError(
            f'The batch norms {odd[:3]} are not called once each in training, as one program for all cores needs them '
            "to be. Give each call a norm of its own, or set tpu_route='stage_programs'.")
    call_of = {id(each.norm): each for each in calls}
    rows = batch_statistics.BatchStatistics(norms).of_micro_batch([call_of[id(norm)] for norm in norms])
    return [tf.stop_gradient(rows)] if norms else []


def _refuse_losses_and_changes(part, called):
    names = [layer.name for layer in part.layers]
    if called.losses:
        raise ValueError(
            f'One of the layers {names} adds a loss (add_loss or an activity regularizer), which one program for all '
            "cores leaves out. Set tpu_route='stage_programs', or compute it in the loss function.")
    extras = [variable.path for variable, *_ in [*called.scope.assigned, *called.scope.borrowed.values()]]
    if extras:
        raise ValueError(
            f'One of the layers {names} assigns, or reads from another layer, {extras[:3]}, which one program for all '
            "cores cannot; it keeps the moving averages of batch norm only. Set tpu_route='stage_programs'.")


def _refuse_unused(part, weights, outputs):
    """Refuses unused weights: their gradient must be None, but here it is 0, and then weight decay changes them."""
    used = graph_pieces.ancestors(tf.nest.flatten(outputs))
    unused = [variable.path for variable, weight in zip(part.trainable_variables, weights) if weight.op not in used]
    if unused:
        raise ValueError(
            f'The outputs of the layers {[layer.name for layer in part.layers]} do not use {unused[:3]}, which one '
            'program for all cores would train all the same. Make them trainable=False, or set '
            "tpu_route='stage_programs'.")
