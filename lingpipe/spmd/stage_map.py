"""Functions that find, check, call and recompute the stages of one program for all cores."""

import collections
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from lingpipe import hyperparams
from lingpipe.partition import layer_analysis
from lingpipe.private_api import xla, xla_sharding
from lingpipe.stages import graph_pieces, stage_layers


def longest_run(layer_params: list[hyperparams.InstantiableParams], specs: list) -> tuple[int, int]:
    """Find the longest run of layers that are equal except for their names.

    Each of these layers has outputs with the same shapes and dtypes as its inputs.

    Args:
        specs: nests of `tf.TensorSpec` `[batch, ...]`, with the input of layer 0 and then the output of each layer.

    Returns:
        (start, end), where `end` is the index after the last layer. If there is no such layer, (0, 0).
    """
    shapes = [str(tf.nest.map_structure(lambda spec: (spec.shape[1:], spec.dtype), nest)) for nest in specs]
    keys = [(layer_analysis.identity(params), inputs) if inputs == outputs else None
            for params, inputs, outputs in zip(layer_params, shapes, shapes[1:])]
    best, start = (0, 0), 0
    for end in range(1, len(keys) + 1):
        if keys[end - 1] is None:
            start = end
        elif keys[end - 1] != keys[start]:
            start = end - 1
        if end - start > best[1] - best[0]:
            best = start, end
    return best


class StageMap:
    """A map that applies a function to each of K stages.

    Tensors have shape `[K, ...]`, with one slice per stage. If the map is partitioned, each core computes one slice, by
    'manual' sharding (GSPMD, arXiv 2105.04663, section 3.4)::

        [K, ...]  ──>  core 0: [...] ─> function ─> [...]   ──>  [K, ...]
                       core 1: [...] ─> function ─> [...]
                         ...

    Otherwise one device computes one slice after the other.
    """

    def __init__(self, num_stages: int, is_partitioned: bool) -> None:
        self.num_stages = num_stages
        self.is_partitioned = is_partitioned

    def __call__(self, function: Callable[[list[tf.Tensor]], list[tf.Tensor]],
                 tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        """Apply `function` to each stage's slices of `tensors`. Return the outputs as tensors `[K, ...]`."""
        if not self.is_partitioned:
            rows = [function([tensor[index] for tensor in tensors]) for index in range(self.num_stages)]
            return [tf.stack(column) for column in zip(*rows)]
        return [self._leave(tensor) for tensor in function([self._enter(tensor)[0] for tensor in tensors])]

    def shard(self, tensor: tf.Tensor, dimension: int = 0) -> tf.Tensor:
        """Ask XLA to shard a dimension over the cores. K must divide the size of the dimension."""
        if not self.is_partitioned:
            return tensor
        return xla_sharding.split(tensor, dimension, self.num_stages, use_sharding_op=True)

    def replicate(self, tensor: tf.Tensor) -> tf.Tensor:
        """Ask XLA to replicate a tensor and its gradient."""
        return xla_sharding.replicate(tensor, use_sharding_op=True) if self.is_partitioned else tensor

    def _enter(self, tensor):
        return xla_sharding.auto_to_manual_spmd_partition(self.shard(tensor), self._sharding(tensor.shape.rank))

    def _leave(self, tensor):
        shape = [self.num_stages, *tensor.shape.as_list()]
        sharding = self._sharding(len(shape))
        return self.shard(xla_sharding.manual_to_auto_spmd_partition(tensor[tf.newaxis], sharding, shape))

    def _sharding(self, rank):
        cores = np.arange(self.num_stages).reshape([self.num_stages] + [1] * (rank - 1))
        return xla_sharding.Sharding.tile(cores).proto.SerializeToString()


def recomputing(function: Callable[[list[tf.Tensor]], list[tf.Tensor]],
                run: Callable | None = None) -> Callable[[list[tf.Tensor]], list[tf.Tensor]]:
    """Return a version of `function` that recomputes its activations in the backward pass (arXiv 1604.06174).

    XLA must compile the returned function.

    Args:
        run: function `(function, tensors)`, such as a `StageMap`, that calls `function`. None means a plain call.
    """
    run = run or (lambda function, tensors: function(tensors))

    @tf.custom_gradient
    def forward(*tensors):
        outputs = run(function, list(tensors))

        def gradient(*output_gradients):
            given = [tf.zeros_like(output) if each is None else each
                     for output, each in zip(outputs, output_gradients) if output.dtype.is_floating]
            found = iter(run(_backward(function, len(tensors)), [*tensors, *given]))
            return [next(found) if tensor.dtype.is_floating else None for tensor in tensors]

        return outputs, gradient

    return lambda tensors: list(forward(*tensors))


def _backward(function, num_inputs):
    """Return a function that recomputes `function` and returns the gradients of float inputs."""

    def backward(tensors):  # the inputs, then the gradients of float outputs
        # Keeps XLA from reusing earlier results. `tf.recompute_grad` has no barrier, so XLA removes its recomputation.
        tensors = xla.optimization_barrier(*tensors)
        inputs, output_gradients = tensors[:num_inputs], tensors[num_inputs:]
        differentiated = [tensor for tensor in inputs if tensor.dtype.is_floating]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(differentiated)
            outputs = [output for output in function(list(inputs)) if output.dtype.is_floating]
        return tape.gradient(
            outputs, differentiated, list(output_gradients), unconnected_gradients=tf.UnconnectedGradients.ZERO)

    return backward


class SpmdValues(NamedTuple):
    """The variables of a pipeline, or the values of these variables."""

    stages: list  # tensors `[K, V, ...]`, each with one weight of every stage, core by core and round by round
    outer: list  # tensors, the other weights
    stage_state: list  # tensors `[K, V, ...]`, each with one variable of every stage that is not trained
    outer_state: list  # tensors, the other variables that are not trained, such as a moving average

    def map(self, of_stages: Callable[[Any], Any], of_outer: Callable[[Any], Any]) -> 'SpmdValues':
        """Apply `of_stages` to the entries of `stages` and `stage_state`, and `of_outer` to all other entries."""
        return SpmdValues(list(map(of_stages, self.stages)), list(map(of_outer, self.outer)),
                          list(map(of_stages, self.stage_state)), list(map(of_outer, self.outer_state)))


def spec_of_row(row: list) -> tf.TensorSpec:
    """Return the spec of a tensor `[K, V, ...]` that stacks K lists of V variables."""
    return tf.TensorSpec([len(row), len(row[0]), *row[0][0].shape], row[0][0].dtype)


def call(part: stage_layers.StageLayers, inputs: Any, values: stage_layers.Variables, step: tf.Tensor,
         seeds: tf.Tensor) -> Any:
    """Run layers on a micro-batch for training, and return the outputs of the last layer.

    Args:
        inputs: nest of tensors `[micro_batch, ...]`.
        seeds: int32 tensor `[generators, 2]`, with one seed per `random_seeds.Generator` of the layers.

    Raises:
        ValueError: one program for all cores cannot run these layers.
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
    """Raise ValueError for unused weights."""
    used = graph_pieces.ancestors(tf.nest.flatten(outputs))
    unused = [variable.path for variable, weight in zip(part.trainable_variables, weights) if weight.op not in used]
    if unused:  # their gradient is 0, not None, so weight decay would change them
        raise ValueError(
            f'The outputs of the layers {[layer.name for layer in part.layers]} do not use {unused[:3]}, which one '
            'program for all cores would train all the same. Make them trainable=False, or set '
            "tpu_route='stage_programs'.")


def validate_numbers(run: tuple[int, int], num_cores: int, num_micro_batches: int, num_rounds: int,
                     recompute: str) -> None:
    """Raise ValueError if one program for all cores cannot use these values. `run` is from `longest_run`."""
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
    """Raise ValueError if one program for all cores cannot train the variables of these layers."""
    constrained = [variable.path for part in [*stages, *outer] for variable in part.trainable_variables
                   if variable.constraint]
    if constrained:
        raise ValueError(f"tpu_route='spmd' takes weights without constraint, but {constrained[:3]} have one. Leave it "
                         "out, or set tpu_route='stage_programs'.")
    if len({tuple(variable.trainable for layer in part.layers for variable in layer.variables) for part in stages}) > 1:
        raise ValueError("tpu_route='spmd' trains the same variables of all layers that are alike, but some of these "
                         "layers are set trainable=False. Set all of them so, or tpu_route='stage_programs'.")
    owners = collections.Counter(key for part in stages for key in set(map(id, _variables(part))))
    owners.update({id(variable) for part in outer for variable in _variables(part)})
    shared = [variable.path for part in stages for variable in _variables(part) if owners[id(variable)] > 1]
    if shared:
        raise ValueError(f"tpu_route='spmd' gives every stage variables of its own, but {shared[0]!r} belongs to other "
                         "layers too. Set tpu_route='stage_programs'.")


def _variables(part):
    return [variable for kind in part.variables() for variable in kind]
