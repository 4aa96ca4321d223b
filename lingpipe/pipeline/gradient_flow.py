"""Gradients of a step: which are needed, how they cross boundaries, and how sums become those of the mean loss."""

import collections
import functools
from collections.abc import Callable, Iterable
from typing import NamedTuple

import tensorflow as tf

from lingpipe.devices import collectives, device_kinds, variable_placement
from lingpipe.stages import boundary, losses, micro_batches, stage_layers, stage_program
from lingpipe.stages.stage import Stage


class BoundaryGradients:
    """Collects the gradients of the outputs of each stage, until that stage takes them.

    ::

        stage 0 ─ output ─┬─> stage 1        add([(0, 0)], m, [gradient]) from stages 1 and 2,
              ^           └─> stage 2        take(0, m, outputs) returns their sum
              └── sum of the two gradients
    """

    def __init__(self) -> None:
        self._parts: dict[tuple[int, int], dict[int, list[tf.Tensor]]] = {}
        self._functions: dict[tuple[str, Callable], Callable] = {}

    def copy(self) -> 'BoundaryGradients':
        """Returns a copy that continues independently."""
        copy = BoundaryGradients()
        copy._functions = self._functions
        copy._parts = {key: {position: list(parts) for position, parts in gradients.items()}
                       for key, gradients in self._parts.items()}
        return copy

    def add(self, sources: Iterable[tuple[int, int]], micro_batch: int, gradients: Iterable[tf.Tensor]) -> None:
        """Adds gradients.

        Args:
            sources: pairs (producer, position), one per gradient: the stage and the output that it belongs to.
            micro_batch: number of the micro-batch.
            gradients: list of tensors.
        """
        for (producer, position), gradient in zip(sources, gradients):
            self._parts.setdefault((producer, micro_batch), {}).setdefault(position, []).append(gradient)

    def take(self, producer: int, micro_batch: int, outputs: boundary.Boundary, device: str) -> list[tf.Tensor]:
        """Returns and drops the sum for every differentiable output; an output that nothing reads has gradient 0.

        Args:
            producer: index of the stage that made the outputs.
            micro_batch: number of the micro-batch.
            outputs: `Boundary` of the outputs.
            device: name of the device that they are on.
        """
        parts = self._parts.pop((producer, micro_batch), {})
        return [self._sum(parts.get(position, []), outputs.values[position], device)
                for position in outputs.differentiable_positions]

    def _sum(self, parts, output, device):
        if not parts:
            return self._call(device, tf.zeros_like, output)
        return parts[0] if len(parts) == 1 else self._call(device, tf.add_n, parts)

    def _call(self, device, function, argument):
        if (device, function) not in self._functions:
            self._functions[device, function] = device_kinds.operations(device, function)
        with tf.device(device):
            return self._functions[device, function](argument)


class StageFlow(NamedTuple):
    """What the backward action of a stage computes.

    Attributes:
        inputs: positions in `Trace.input_gradients`: inputs that depend on trained weights of earlier stages.
        weights: positions in `Trace.weights`: weights that a loss depends on.
    """

    inputs: tuple
    weights: tuple

    def __bool__(self) -> bool:
        """Whether there is anything to compute."""
        return bool(self.inputs or self.weights)


def stage_flows(programs: list[stage_program.StageProgram], sources: list[list[tuple[int, int]]],
                input_gradients_needed: bool) -> list[StageFlow]:
    """Finds, for each stage, which gradients its backward action has to compute.

    A gradient is needed if a loss depends on it downstream, and a trained weight needs it upstream::

        frozen ──> frozen ──┬──> trained ──> loss      no backward action in the frozen stages, nor in the head that
                            └──> trained head           has no loss: weights without a path to a loss have no gradient

    Args:
        programs: list of `StageProgram`s.
        sources: for each stage, the list of pairs (producer, position) that its differentiable inputs come from: a
            value of an earlier stage, or of the pipeline's inputs if the producer is -1.
        input_gradients_needed: whether gradients of the pipeline's inputs are needed.

    Returns:
        List of `StageFlow`s.
    """
    paths = [_paths(program) for program in programs]
    arriving = _arriving(programs, paths, sources)
    wanted = {-1: lambda position: input_gradients_needed}
    flows = []
    for index, (found, places) in enumerate(zip(paths, sources)):
        given = arriving[index]
        weights = [position for position, bits in enumerate(found.weights) if bits & given]
        inputs = [position for position, (bits, (producer, place)) in enumerate(zip(found.inputs, places))
                  if bits & given and wanted[producer](place)]
        flows.append(StageFlow(tuple(inputs), tuple(weights)))
        bits = functools.reduce(int.__or__, [found.weights[position] for position in weights]
                                + [found.inputs[position] for position in inputs], 0)
        wanted[index] = functools.partial(_has_bit, programs[index], bits)
    return flows


class _Paths(NamedTuple):
    """For each input and weight of a stage, the given gradients that its gradient depends on, one bit each."""

    inputs: list
    weights: list


def _arriving(programs, paths, sources):
    """Returns, for each stage, the bits of the given gradients that arrive; those of the last stage all do."""
    arriving = [_everything(program) if index == len(programs) - 1 else _added_losses(program)
                for index, program in enumerate(programs)]
    for index in reversed(range(len(programs))):
        for bits, (producer, position) in zip(paths[index].inputs, sources[index]):
            if bits & arriving[index] and producer >= 0:
                arriving[producer] |= _bit(programs[producer], position)
    return arriving


def _everything(program):
    return (1 << len(program.trace.given_gradients)) - 1


def _added_losses(program):
    return _everything(program) & ~(_everything(program) >> program.num_added_losses)


def _bit(program, position):
    return 1 << program.trace.outputs.differentiable_positions.index(position)


def _has_bit(program, bits, position):
    return bool(bits & _bit(program, position))


def _paths(program):
    trace, bits = program.trace, {}
    for place, tensor in enumerate(trace.given_gradients):
        bits[tensor.op] = 1 << place
    for operation in program.graph.get_operations():
        found = functools.reduce(int.__or__, [bits.get(tensor.op, 0) for tensor in operation.inputs], 0)
        if found:
            bits[operation] = bits.get(operation, 0) | found

    def of(gradient):
        """Returns the bits of a gradient; one that is constant, such as that of a sign, has all of them."""
        return 0 if gradient is None else bits.get(gradient.op, 0) or _everything(program)

    return _Paths(list(map(of, trace.input_gradients)), [of(tf.nest.flatten(each)[0]) for each in trace.sums])


class StageGradients(NamedTuple):
    """Gradients of the weights of one stage on one device.

    Attributes:
        variables: list of the trainable Keras variables.
        gradients: list of tensors, one per variable; `tf.IndexedSlices` as in Keras if rows were looked up.
        regularization: scalar, the sum of their regularisers.
        squared_norm: scalar, the sum of squares of all gradients; clipping needs nothing else from a stage.
    """

    variables: list
    gradients: list
    regularization: tf.Tensor
    squared_norm: tf.Tensor


def finish(stages: list[Stage], values: list[stage_layers.Variables], sums: micro_batches.Sums,
           total_weight: tf.Tensor) -> list[StageGradients]:
    """Turns sums into gradients of the mean loss, on the devices of the weights.

    A variable that several stages use belongs to the first of them: the others send it their sums.

    Args:
        stages: list of `Stage`s.
        values: list of `Variables` of tensors, one per stage.
        sums: `micro_batches.Sums`, over the examples.
        total_weight: scalar by which the loss is divided: the weight of all replicas' examples.

    Returns:
        List of `StageGradients`: for every stage, one for each device that has weights of it. Variables that neither
        the loss nor a regulariser depends on are left out.
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
        for device, rows in entries.items():
            variables, weights, own_parts = map(list, zip(*rows))
            finished.append(_finish(device, variables, weights, own_parts, total_weight))
    return finished


def _over_all_replicas(device, totals):
    group = collectives.current()
    if group.count == 1:
        return totals
    sums = iter(group.sum(device, [tf.convert_to_tensor(total) for total in totals if total is not None]))
    return [None if total is None else next(sums) for total in totals]


def _mean(total, weight, total_weight):
    """Returns a sum of gradients over the total weight; 0 if only a regulariser depends on the weight."""
    if total is None:
        return tf.zeros_like(weight)
    mean = tf.math.divide_no_nan(_numbers(total), tf.cast(total_weight, total.dtype))
    return tf.IndexedSlices(mean, total.indices, total.dense_shape) if isinstance(total, tf.IndexedSlices) else mean


def _numbers(gradient):
    """Returns the values that a gradient holds, from which Keras computes norms."""
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def _finish(device, variables, weights, parts, total_weight):
    """Adds up all parts and replicas, divides by the total weight, and adds regularisers, once per step."""

    weights = [weight if variable.regularizer else None for variable, weight in zip(variables, weights)]

    def regularize(weights):
        terms = [variable.regularizer(weight) for variable, weight in zip(variables, weights) if weight is not None]
        return losses.add_up(terms)

    def divide_and_regularize(weights, parts, total_weight):
        totals = [micro_batches.total(each, variable.shape) if each else None
                  for each, variable in zip(parts, variables)]
        totals = _over_all_replicas(device, totals)
        regularized = [weight for weight in weights if weight is not None]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(regularized)
            regularization = regularize(weights)
        of_regularizers = iter(tape.gradient(regularization, regularized))
        extra = [None if weight is None else next(of_regularizers) for weight in weights]
        gradients = [_mean(total, weight, total_weight) for total, weight in zip(totals, weights)]
        gradients = [mean if more is None else tf.convert_to_tensor(mean) + more
                     for mean, more in zip(gradients, extra)]
        halves = [tf.nn.l2_loss(losses.in_full_precision(_numbers(gradient))) for gradient in gradients]
        return gradients, regularization, 2.0 * losses.add_up(halves)

    with tf.device(device):
        found = device_kinds.one_call(device, divide_and_regularize)(weights, parts, total_weight)
        return StageGradients(variables, *found)
