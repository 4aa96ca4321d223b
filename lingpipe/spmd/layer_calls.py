"""Layers as functions of tensors in one program for all cores: the state that they may have, and what is refused."""

import collections
from typing import Any

import tensorflow as tf

from lingpipe.stages import graph_pieces, stage_layers


def call(part: stage_layers.StageLayers, inputs: Any, values: stage_layers.Variables, step: tf.Tensor,
         seeds: tf.Tensor) -> Any:
    """Run layers on a micro-batch, as in training, and return their nest of outputs.

    Args:
        inputs: nest of tensors `[micro_batch, ...]`.
        seeds: int32 tensor `[own generators, 2]`.

    Raises:
        ValueError: the layers do something that one program for all cores does not support.
    """
    weights = list(map(tf.identity, values.weights))  # in the graph of the layers, for `_refuse_unused`
    values = stage_layers.Variables(weights, list(map(tf.stop_gradient, values.state)))
    nests, scope = part.call(inputs, values, step, part.given_seeds(seeds), training=True)
    _refuse_losses_and_changes(part, scope)
    _refuse_unused(part, weights, nests[-1])
    return nests[-1]


def _refuse_losses_and_changes(part, scope):
    names = [layer.name for layer in part.layers]
    if scope.added_losses:
        raise ValueError(
            f'One of the layers {names} adds a loss (add_loss or an activity regularizer), which one program for all '
            "cores leaves out. Set tpu_route='stage_programs', or compute it in the loss function.")
    if scope.norm_calls:
        raise ValueError(
            f'One of the layers {names} is or has a batch norm in training, {scope.norm_calls[0].norm.name!r}, '
            'whose moving averages one program for all cores does not keep. Set its trainable to False, use layer or '
            "group normalization, or set tpu_route='stage_programs'.")
    extras = [variable.path for variable, *_ in [*scope.assigned, *scope.borrowed.values()]]
    if extras:
        raise ValueError(
            f'One of the layers {names} assigns, or reads from another layer, {extras[:3]}, which one program for all '
            "cores cannot. Set tpu_route='stage_programs'.")


def _refuse_unused(part, weights, outputs):
    """Refuse unused weights: their gradient must be None, but here it is 0, and then weight decay changes them."""
    used = graph_pieces.ancestors(tf.nest.flatten(outputs))
    unused = [variable.path for variable, weight in zip(part.trainable_variables, weights) if weight.op not in used]
    if unused:
        raise ValueError(
            f'The outputs of the layers {[layer.name for layer in part.layers]} do not use {unused[:3]}, which one '
            'program for all cores would train all the same. Make them trainable=False, or set '
            "tpu_route='stage_programs'.")


def validate_numbers(run: tuple[int, int], num_cores: int, num_micro_batches: int, num_rounds: int,
                     recompute: str) -> None:
    """Raise ValueError if these numbers and the equal layers (`run[0]` to `run[1]`) do not fit together."""
    if run[1] - run[0] < num_cores * num_rounds:
        times = f' times num_virtual_stages={num_rounds}' if num_rounds > 1 else ''
        raise ValueError(
            f"tpu_route='spmd' needs at least num_partitions={num_cores}{times} layers in a row that are alike (equal "
            f"params, outputs shaped as inputs), but finds {run[1] - run[0]}. Set tpu_route='stage_programs', or fewer "
            'partitions.')
    if recompute in ('none', 'selective'):
        raise ValueError(f"recompute={recompute!r} does not go with tpu_route='spmd', which keeps nothing of a tick "
                         "but what entered it. Set recompute to 'stage' or 'layer', or tpu_route to 'stage_programs'.")
    if num_rounds > 1 and num_micro_batches < num_cores:
        raise ValueError(
            f"num_virtual_stages={num_rounds} with tpu_route='spmd' needs at least as many micro-batches as "
            f'partitions, but num_micro_batches={num_micro_batches} is less than num_partitions={num_cores}: a '
            f'micro-batch would come back before the last one has entered. Set num_micro_batches to {num_cores} or '
            'more, or num_virtual_stages to 1.')


def validate_stages(stages: list[stage_layers.StageLayers], outer: list[stage_layers.StageLayers]) -> None:
    """Raise ValueError unless stages train the same kinds of variables, share none, and no layer has constraints."""
    for part in [*stages, *outer]:
        _refuse_constraints(part)
    if len(set(map(_trained, stages))) > 1:
        raise ValueError("tpu_route='spmd' trains the same variables of all layers that are alike, but some of these "
                         "layers are set trainable=False. Set all of them so, or tpu_route='stage_programs'.")
    owners = collections.Counter(key for part in stages for key in set(map(id, _variables(part))))
    owners.update({id(variable) for part in outer for variable in _variables(part)})
    shared = [variable.path for part in stages for variable in _variables(part) if owners[id(variable)] > 1]
    if shared:
        raise ValueError(f"tpu_route='spmd' gives every stage variables of its own, but {shared[0]!r} belongs to other "
                         "layers too. Set tpu_route='stage_programs'.")


def _trained(part):
    return tuple(variable.trainable for layer in part.layers for variable in layer.variables)


def _variables(part):
    return [variable for kind in part.variables() for variable in kind]


def _refuse_constraints(part):
    constrained = [variable.path for variable in part.trainable_variables if variable.constraint]
    if constrained:
        raise ValueError(f"tpu_route='spmd' takes weights without constraint, but {constrained[:3]} have one. Leave it "
                         "out, or set tpu_route='stage_programs'.")
