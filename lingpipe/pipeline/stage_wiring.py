"""Traces of all stages, one after the other, and the values of other stages that each of them reads."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from lingpipe.stages import boundary, micro_batches, row_rules, stage_program
from lingpipe.stages.stage import Stage


class Wiring:
    """The traced stages of a pipeline and the tensors that pass between them, each list with an entry per stage."""

    def __init__(self) -> None:
        self.programs: list[stage_program.StageProgram] = []
        # pairs (producer, position) that the differentiable inputs come from; producer -1 is the pipeline's input
        self.differentiable_sources: list[list[tuple[int, int]]] = []
        # of each loss that layers add: True for a sum over rows, False for a mean, None if neither is certain
        self.are_sums: list[list[bool | None]] = []
        self._sources: list[list[tuple[int, int]]] = []

    def inputs(self, index: int, outputs_of: Callable[[int], boundary.Boundary]) -> boundary.Boundary:
        """Return the `Boundary` of a stage's inputs; `outputs_of` returns the `Boundary` of a producer's outputs."""
        return _gather(self._sources[index], outputs_of)

    def add(self, stage: Stage, given: boundary.Boundary, structure: boundary.Structure, targets: Any,
            loss: Callable | None, training: bool | None, by_layer: bool) -> None:
        """Trace the next stage; see `trace`. `given` and `structure` belong to the pipeline's inputs."""
        def outputs_of(producer: int) -> boundary.Boundary:
            return given if producer < 0 else self.programs[producer].trace.results.outputs

        def structure_of(producer: int) -> boundary.Structure:
            return structure if producer < 0 else self.programs[producer].trace.output_structure

        sources, own_structure = _resolved(stage, structure_of)
        inputs = _gather(sources, outputs_of)
        program = stage.program(inputs, own_structure, targets, loss, training, by_layer)
        self._sources.append(sources)
        self.differentiable_sources.append([sources[position] for position in inputs.differentiable_positions])
        self.programs.append(program)


def trace(stages: list[Stage], specs: tuple[boundary.Boundary, Any], structure: boundary.Structure,
          loss: Callable | None, training: bool | None, by_layer: bool, is_whole_batch: bool = False) -> Wiring:
    """Trace stages, unless they have already been traced for these shapes.

    Args:
        specs: pair of the `Boundary` of `tf.TensorSpec` of a micro-batch of the pipeline's inputs, and the nest of
            specs of what the loss compares the outputs with.
        loss: function `(targets, outputs) -> {name: (sum, weight)}` that runs on the last stage, or None.
        by_layer: whether backward passes are to be cut at every segment.
        is_whole_batch: whether the specs are those of a whole batch, for which sums and means are the same.
    """
    wiring, (inputs, targets) = Wiring(), specs
    for stage in stages:
        is_last = stage is stages[-1]
        wiring.add(stage, inputs, structure, targets if is_last else (), loss if is_last else None, training, by_layer)
    if is_whole_batch:
        wiring.are_sums = [[False] * len(program.trace.added_losses) for program in wiring.programs]
    else:
        wiring.are_sums = _are_sums(wiring, stages, inputs, structure, training, by_layer)
    return wiring


def _are_sums(wiring: Wiring, stages: list[Stage], inputs: boundary.Boundary, structure: boundary.Structure,
              training: bool | None, by_layer: bool) -> list[list[bool | None]]:
    """Find which added losses are sums over rows and which are means, from traces of two numbers of rows."""
    end = max((index + 1 for index, program in enumerate(wiring.programs) if program.trace.added_losses), default=0)

    def programs(num_rows: int) -> list[stage_program.StageProgram]:
        sized = Wiring()
        for stage in stages[:end]:
            sized.add(stage, micro_batches.specs_of(inputs, num_rows), structure, (), None, training, by_layer)
        return sized.programs

    try:
        sums = [one.are_sums(other) for one, other in zip(*map(programs, row_rules.NUM_ROWS))]
    except Exception:  # noqa: BLE001  layers may raise anything for a size that they are not made for
        return [[None] * len(program.trace.added_losses) for program in wiring.programs]
    return sums + [[]] * (len(stages) - end)


def _resolved(stage: Stage,
              structure_of: Callable[[int], boundary.Structure]) -> tuple[list[tuple[int, int]], boundary.Structure]:
    """Return pairs (producer, position in its values) of what a stage reads, and the `Structure`, which marks Nones."""
    if stage.sources is None:
        structure = structure_of(stage.index - 1)
        count = sum(tf.nest.flatten(structure.nest))
        return [(stage.index - 1, position) for position in range(count)], structure
    is_value = [structure_of(producer).nest[position] for producer, position in stage.sources]
    places = [(producer, sum(structure_of(producer).nest[:position])) for producer, position in stage.sources]
    return [place for place, there in zip(places, is_value) if there], boundary.Structure(is_value)


def _gather(sources: list[tuple[int, int]], outputs_of: Callable[[int], boundary.Boundary]) -> boundary.Boundary:
    produced = [outputs_of(producer) for producer, _ in sources]
    masks = {index: parts.masks[position] for index, (parts, (_, position)) in enumerate(zip(produced, sources))
             if position in parts.masks}
    return boundary.Boundary([parts.values[position] for parts, (_, position) in zip(produced, sources)], masks)
