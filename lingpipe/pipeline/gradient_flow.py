"""Which gradients a step needs: those on a way from a loss to a weight that is trained."""

import functools
from typing import NamedTuple

import tensorflow as tf


class StageFlow(NamedTuple):
    """What the backward action of a stage computes.

    Attributes:
        inputs: positions in `Trace.input_gradients`: inputs that trained weights of earlier stages led to.
        weights: positions in `Trace.weights`: weights that a loss depends on.
    """

    inputs: tuple
    weights: tuple

    def __bool__(self):
        """Whether there is anything to compute."""
        return bool(self.inputs or self.weights)


def stage_flows(programs, sources, input_gradients_needed):
    """Finds, for each stage, which gradients its backward action has to compute.

    A gradient is wanted where something downstream hands a gradient back to it, and something upstream waits for it::

        frozen ──> frozen ──┬──> trained ──> loss      no backward action in the frozen stages, nor in the head that
                            └──> trained head           has no loss: weights without a way to a loss have no gradient

    Args:
        programs: list of `StageProgram`s.
        sources: for each stage, the list of pairs (producer, position) that its differentiable inputs come from: a value of an
            earlier stage, or of the pipeline's inputs where the producer is -1.
        input_gradients_needed: whether gradients of the pipeline's inputs are wanted.

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
    """For each input and weight of a stage, the given gradients that its gradient depends on, a bit each."""

    inputs: list
    weights: list


def _arriving(programs, paths, sources):
    """Returns, for each stage, the bits of the given gradients that something hands back; all do to the last one."""
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
        """A gradient that is a constant, as that of a sign, is there whatever arrives."""
        return 0 if gradient is None else bits.get(gradient.op, 0) or _everything(program)

    return _Paths(list(map(of, trace.input_gradients)), [of(tf.nest.flatten(each)[0]) for each in trace.sums])
