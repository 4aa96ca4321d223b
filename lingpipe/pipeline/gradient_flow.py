"""Needed gradients, boundary gradients, and gradients of the mean loss."""

import collections
import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from lingpipe.devices import collectives, device_kinds, variable_placement
from lingpipe.stages import boundary, losses, micro_batches, stage_layers, stage_program
from lingpipe.stages.stage import Stage


class BoundaryGradients:
    """The gradients of stage outputs, stored by `add` until `take` returns them.

    ::

        stage 0 ─ output ─┬─> stage 1        add([(0, 0)], m, [gradient]) from stages 1 and 2,
              ^           └─> stage 2        take(0, m, outputs) returns their sum
              └── sum of the two gradients
    """

    def __init__(self) -> None:
        self._parts: dict[tuple[int, int], dict[int, list[tf.Tensor]]] = {}
        self._functions: dict[tuple[str, Callable], Callable] = {}

    def add(self, sources: Iterable[tuple[int, int]], micro_batch: int, gradients: Iterable[tf.Tensor]) -> None:
        """Add a gradient for each output in `sources`. An output is a pair (producer, position)."""
        for (producer, position), gradient in zip(sources, gradients):
            self._parts.setdefault((producer, micro_batch), {}).setdefault(position, []).append(gradient)

    def take(self, producer: int, micro_batch: int, outputs: boundary.Boundary, device: str) -> list[tf.Tensor]:
        """Remove and return the gradients of differentiable outputs. An output that nothing reads has gradient 0."""
        parts = self._parts.pop((producer, micro_batch), {})
        return [self._sum(parts.get(position, []), outputs.values[position], device)
                for position in outputs.differentiable_positions]

    def _sum(self, parts: list, output: tf.Tensor, device: str) -> tf.Tensor:
        if not parts:
            return self._call(device, tf.zeros_like, output)
        return parts[0] if len(parts) == 1 else self._call(device, tf.add_n, parts)

    def _call(self, device: str, function: Callable, argument: Any) -> tf.Tensor:
        if (device, function) not in self._functions:
            self._functions[device, function] = device_kinds.operations(device, function)
        with tf.device(device):
            return self._functions[device, function](argument)


def needed_gradients(programs: list[stage_program.StageProgram], sources: list[list[tuple[int, int]]],
                     input_gradients_needed: bool) -> list[stage_program.NeededGradients]:
    """Find which gradients the backward action of each stage has to compute.

    Gradients are needed on every path from a trained weight to a loss::

        frozen ──> frozen ──┬──> trained ──> loss      frozen stages have no trained weight: no backward action
                            └──> trained head           the head has no path to a loss: no backward action

    Args:
        sources: for each differentiable input of each stage, a pair (producer, position). The input is the value at
            `position` in the outputs of stage `producer`. Producer -1 stands for the pipeline's inputs.
        input_gradients_needed: whether gradients of the pipeline's inputs are needed.
    """
    paths = [_paths(program) for program in programs]
    arriving = _arriving(programs, paths, sources)
    read: dict[int, _Given] = {}  # {stage index: entries of `given_gradients` that the backward action reads}
    needed = []

    def is_wanted(producer: int, position: int) -> bool:
        # Producers are earlier stages, so what they read is known.
        return input_gradients_needed if producer < 0 else _index(programs[producer], position) in read[producer]

    for index, (found, own_sources) in enumerate(zip(paths, sources)):
        weights = [number for number, given in enumerate(found.weights) if given & arriving[index]]
        inputs = [number for number, (given, source) in enumerate(zip(found.inputs, own_sources))
                  if given & arriving[index] and is_wanted(*source)]
        read[index] = frozenset().union(*(found.weights[number] for number in weights),
                                        *(found.inputs[number] for number in inputs))
        needed.append(stage_program.NeededGradients(tuple(inputs), tuple(weights)))
    return needed


_Given = frozenset[int]  # indices in `Trace.given_gradients` of a stage


class _Paths(NamedTuple):
    """For each input and weight of a stage, the entries of `Trace.given_gradients` that its gradient depends on::

        given gradients    0 (an output)      1 (another output)     2 (the losses that layers add)
                             │     └──────┐     │
        gradients of       weight 0     weight 1       paths.weights == [{0}, {0, 1}]
    """

    inputs: list[_Given]
    weights: list[_Given]


def _arriving(programs: list[stage_program.StageProgram], paths: list[_Paths],
              sources: list[list[tuple[int, int]]]) -> list[_Given]:
    """Find, for each stage, which entries of `Trace.given_gradients` depend on a loss."""
    arriving = [set(program.of_added_losses(sorted(_all_given(program)))) for program in programs]
    arriving[-1] = set(_all_given(programs[-1]))
    for index in reversed(range(len(programs))):
        for given, (producer, position) in zip(paths[index].inputs, sources[index]):
            if producer >= 0 and given & arriving[index]:
                arriving[producer].add(_index(programs[producer], position))
    return list(map(frozenset, arriving))


def _all_given(program: stage_program.StageProgram) -> _Given:
    return frozenset(range(len(program.trace.given_gradients)))


def _index(program: stage_program.StageProgram, position: int) -> int:
    """Return the index in `Trace.given_gradients` for the output at `position`."""
    return program.trace.results.outputs.differentiable_positions.index(position)


def _paths(program: stage_program.StageProgram) -> _Paths:
    trace, nothing = program.trace, frozenset()
    given = {tensor.op: frozenset([index]) for index, tensor in enumerate(trace.given_gradients)}
    for operation in program.graph.get_operations():
        read = {given.get(tensor.op, nothing) for tensor in operation.inputs} - {nothing}
        if read:
            given[operation] = given.get(operation, nothing).union(*read)

    def of(gradient: Any) -> _Given:
        """Find which entries of `Trace.given_gradients` the tensor `gradient` depends on."""
        # A constant gradient, such as that of tf.sign, must still be summed if there is any loss, so all are returned.
        return nothing if gradient is None else given.get(gradient.op) or _all_given(program)

    return _Paths(list(map(of, trace.input_gradients)), [of(tf.nest.flatten(each)[0]) for each in trace.sums])


class LossFactors:
    """Factors by which the backward pass multiplies the gradients of a batch's losses.

    Stages sum losses over examples; `finish` divides the gradients by the total weight. `program` is the program of the
    last stage. `shares` has the `executor.ReplicaShare` of each replica.
    """

    def __init__(self, program: stage_program.StageProgram, device: str, shares: list[Any],
                 loss_scale: tf.Tensor | None, group: collectives.Group) -> None:
        self._program, self._device, self._host = program, device, device_kinds.for_single_operations(device)
        self._shares, self._loss_scale, self._group = shares, loss_scale, group

    @functools.cached_property
    def total_rows(self) -> tf.Tensor:
        """The number of rows of the whole batch, as a float32 scalar."""
        with tf.device(self._host):
            num_rows = tf.add_n([tf.cast(sum(share.row_counts), tf.float32) for share in self._shares])
            return self._group.sum(self._device, num_rows)

    @functools.cached_property
    def _total_weight(self) -> tf.Tensor:
        """The scalar by which the summed loss is divided to get the mean loss."""
        with tf.device(self._device):
            weights = [self._program.total_weight(targets, share.ids.of(m))
                       for share in self._shares for m, targets in enumerate(share.targets)]
        with tf.device(self._host):
            return self._group.sum(self._device, tf.add_n(weights))

    @functools.cached_property
    def factor_of_added_losses(self) -> tf.Tensor:
        """The factor for losses that layers add."""
        with tf.device(self._host):
            weight, rows = losses.in_one_precision([self._total_weight, self.total_rows])
            return self.scaled(weight / rows)  # `finish` divides by the weight, which leaves 1 / `total_rows`

    @functools.cached_property
    def gradient_factor(self) -> tf.Tensor | None:
        """The factor for the main loss, or None if the loss is not scaled."""
        if self._loss_scale is None:
            return None
        try:
            weight = self._total_weight
        except losses.WeightUnknownError:  # it depends on outputs
            weight = self.total_rows
        with tf.device(self._host):  # divided by the weight, float16 gradients have the same range as in Keras
            return tf.cast(self._loss_scale, weight.dtype) / tf.where(weight > 0.0, weight, 1.0)

    def scaled(self, gradient: tf.Tensor) -> tf.Tensor:
        """Multiply a gradient of the summed loss by `gradient_factor`."""
        return gradient if self.gradient_factor is None else gradient * tf.cast(self.gradient_factor, gradient.dtype)


class StageGradients(NamedTuple):
    """Gradients of the weights of one stage on one device."""

    variables: list  # the trainable Keras variables
    gradients: list  # tensors, one per variable; `tf.IndexedSlices` as in Keras if rows were looked up
    regularization: tf.Tensor  # scalar, the sum of their regularisers
    squared_norm: tf.Tensor  # scalar, the sum of squares of all gradients; clipping needs nothing else from a stage


def finish(stages: list[Stage], values: list[stage_layers.Variables], sums: micro_batches.Sums,
           total_weight: tf.Tensor, group: collectives.Group) -> list[StageGradients]:
    """Turn gradient sums into gradients of the mean loss, on the devices of the weights.

    Args:
        total_weight: the sum of the loss weights of the batch, times `gradient_factor` if the loss is scaled.

    Returns:
        List of `StageGradients`: for each stage, one per device that stores weights of the stage. Variables without a
        gradient are omitted.
    """
    parts = collections.defaultdict(list)
    for variables, tensors in zip(sums.weights, sums.weight_gradients):
        for variable, tensor in zip(variables, tensors):
            parts[id(variable)].append(tensor)
    finished, seen = [], set()
    trained = [variable for stage in stages for variable in stage.variables().weights]
    for stage, value in zip(stages, values):
        entries = collections.defaultdict(list)
        for variable, weight in zip(stage.variables().weights, value.weights):
            if id(variable) not in seen and (parts[id(variable)] or variable.regularizer):
                device = variable_placement.owner(variable, [stage.device])
                entries[device].append((variable, weight, parts[id(variable)]))
            seen.add(id(variable))  # the first stage that uses a variable gets the sum of its gradients
        for device, own in entries.items():
            variables, weights, own_parts = map(list, zip(*own))
            finished.append(_finish_on_device(device, variables, weights, own_parts, total_weight, group, trained))
    return finished


def _mean(total: Any, total_weight: tf.Tensor) -> Any:
    mean = tf.math.divide_no_nan(_numbers(total), tf.cast(total_weight, total.dtype))
    return tf.IndexedSlices(mean, total.indices, total.dense_shape) if isinstance(total, tf.IndexedSlices) else mean


def _numbers(gradient: Any) -> tf.Tensor:
    """Return the tensor from which Keras computes the norm of a gradient."""
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def _refuse_other_weights(read: Iterable[tf.Variable], trained: list[keras.Variable]) -> None:
    natives = set(map(id, read))
    names = [variable.path for variable in trained if id(variable_placement.native(variable)) in natives]
    if names:
        raise ValueError(f'A regularizer reads {names[:3]}, trained weights that it is not given, which would get no '
                         'gradient from it. Let a layer that has all these weights add the loss by add_loss.')


def _finish_on_device(device: str, variables: list[keras.Variable], weights: list[tf.Tensor], parts: list[list],
                      total_weight: tf.Tensor, group: collectives.Group,
                      trained: list[keras.Variable]) -> StageGradients:
    """Compute one device's `StageGradients` for variables of one stage."""
    def finish(weights: list, parts: list, total_weight: tf.Tensor) -> tuple:
        totals = [micro_batches.total(each, variable.shape) if each else tf.zeros_like(weight)
                  for each, variable, weight in zip(parts, variables, weights)]
        if group.count > 1:  # own replicas are summed already
            totals = group.sum(device, [tf.convert_to_tensor(total) for total in totals])
        regularization, of_regularizers = _regularization(variables, weights, trained)
        gradients = [_mean(total, total_weight) for total in totals]
        gradients = [mean if more is None else tf.convert_to_tensor(mean) + more
                     for mean, more in zip(gradients, of_regularizers)]
        halves = [tf.nn.l2_loss(losses.in_full_precision(_numbers(gradient))) for gradient in gradients]
        return gradients, regularization, 2.0 * losses.add_up(halves)

    regularized = [weight if variable.regularizer else None for variable, weight in zip(variables, weights)]
    with tf.device(device):
        found = device_kinds.one_call(device, finish)(regularized, parts, total_weight)
        return StageGradients(variables, *found)


def _regularization(variables: list[keras.Variable], weights: list[tf.Tensor | None],
                    trained: list[keras.Variable]) -> tuple[tf.Tensor, list[tf.Tensor | None]]:
    """Return the sum of all regularisers, and the gradients of this sum."""
    regularized = [weight for weight in weights if weight is not None]
    with tf.GradientTape(watch_accessed_variables=False) as tape, tf.GradientTape() as reads:
        tape.watch(regularized)
        total = losses.add_up([
            variable.regularizer(weight) for variable, weight in zip(variables, weights) if weight is not None])
    _refuse_other_weights(reads.watched_variables(), trained)
    gradients = iter(tape.gradient(total, regularized))
    return total, [None if weight is None else next(gradients) for weight in weights]
