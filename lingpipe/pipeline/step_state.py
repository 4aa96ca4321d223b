"""Values that stages read during a batch, such as assigned variables."""

import collections
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import keras
import tensorflow as tf

from lingpipe import schedules
from lingpipe.devices import collectives, device_kinds, variable_placement
from lingpipe.stages import boundary, micro_batches, row_rules, stage_layers, stage_program, stage_trace
from lingpipe.stages.stage import Stage


class Assigned(NamedTuple):
    """A Keras variable that layers assign."""

    variable: Any
    before: tf.Tensor  # its value before the batch
    value: tf.Tensor  # the value that was assigned last
    device: str  # device that assigned it


class StepState:
    """The values of variables during a batch, as tensors on the devices of the stages.

    An action reads the values that earlier actions of the same stage have assigned. Moving statistics of batch norm
    change only at the end of the batch.
    """

    def __init__(self, stages: list[Stage], programs: list[stage_program.StageProgram],
                 values: list[stage_layers.Variables]) -> None:
        self._stages, self._programs, self._initial = stages, programs, values
        self._variables = [stage.variables() for stage in stages]
        self._assigned: dict[int, Assigned] = {}
        self._brought: dict[tuple[int, int], tf.Tensor] = {}
        specs = [program.trace.statistics.spec for program in programs]
        self._statistics = [device_kinds.call(stage.device, functools.partial(tf.zeros, spec.shape, spec.dtype))
                            for stage, spec in zip(stages, specs)]

    @property
    def borrowed_from_outside(self) -> list[keras.Variable]:
        """List of the Keras variables that some stage reads and no stage owns."""
        own = {id(variable) for parts in self._variables for variable in parts.weights + parts.state}
        found = [variable for program in self._programs for variable, _ in program.trace.borrowed]
        return list({id(variable): variable for variable in found if id(variable) not in own}.values())

    def before(self, stage: Stage) -> tuple[stage_layers.Variables, list[tf.Tensor], tf.Tensor]:
        """Return `values`, `borrowed` and `statistics` for the `stage_program.Arguments` of a forward action."""
        variables, values = self._variables[stage.index], self._initial[stage.index]
        borrowed = [self._present(variable, self._initial_value(stage, variable))
                    for variable, _ in self._programs[stage.index].trace.borrowed]
        return self._with_assigned(variables, values), borrowed, self._statistics[stage.index]

    def record(self, stage: Stage, results: stage_trace.Results) -> None:
        """Record the statistics and assigned values of a forward action."""
        self._statistics[stage.index] = results.statistics
        for variable, value in zip(self._programs[stage.index].trace.assigned, results.assigned):
            earlier = self._assigned.get(id(variable))
            before = earlier.before if earlier else self._initial_value(stage, variable)
            self._assigned[id(variable)] = Assigned(variable, before, value, stage.device)

    def final_values(self) -> list[stage_layers.Variables]:
        """Return the current values of the variables, as one `Variables` per stage."""
        return [self._with_assigned(variables, values) for variables, values in zip(self._variables, self._initial)]

    def updates(self, replicas: Sequence[Self], group: collectives.Group) -> list[tuple[keras.Variable, tf.Tensor]]:
        """Return pairs (Keras variable, new value) of all variables that change.

        Args:
            replicas: list of the `StepState`s of all replicas at the end of the batch. The first is this object.
        """
        changed: dict[int, tuple[keras.Variable, tf.Tensor]] = {}

        def read(variable: keras.Variable) -> tf.Tensor:
            return changed[id(variable)][1] if id(variable) in changed else variable_placement.read_variable(variable)

        for key, each in self._assigned.items():
            value = _aggregate(each, [replica._assigned[key].value for replica in replicas])
            changed[key] = (each.variable, group.agree_on(each.device, each.variable.aggregation, each.before, value))
        for stage, program, *parts in zip(self._stages, self._programs, *[each._statistics for each in replicas]):
            statistics = program.trace.statistics  # combines batch norm's statistics over the rows of all replicas
            merged = parts[0] if len(parts) == 1 else device_kinds.call(
                stage.device, functools.partial(functools.reduce, statistics.merge), parts)
            for variable, value in statistics.updates(merged, read, stage.device, group):
                changed[id(variable)] = (variable, value)
        return list(changed.values())

    def refuse_other_orders(self, schedule: schedules.Schedule) -> None:
        """Raise ValueError if micro-batches could assign a variable out of order."""
        users = collections.defaultdict(set)
        for index, (parts, program) in enumerate(zip(self._variables, self._programs)):
            for variable in [*parts.weights, *parts.state, *[variable for variable, _ in program.trace.borrowed]]:
                users[id(variable)].add(index)
        for index, program in enumerate(self._programs):
            order = [action.micro_batch for action in itertools.chain(*schedule.device_actions)
                     if (action.kind, action.stage) == (schedules.FORWARD, index)]
            wrong = [variable.path for variable in program.trace.assigned
                     if len(users[id(variable)]) > 1 or order != sorted(order)]
            if wrong:
                raise ValueError(
                    f'Layers change {wrong[:3]} from micro-batch to micro-batch, but several partitions have them, or '
                    f'schedule={schedule.name!r} has another order of forward actions. Cut the model so that one '
                    "partition has them (partition_by=[...]), or set schedule='gpipe'.")

    def _with_assigned(self, variables: stage_layers.Variables,
                       values: stage_layers.Variables) -> stage_layers.Variables:
        if not self._assigned:
            return values
        return type(values)(*[[self._present(variable, value) for variable, value in zip(*pair)]
                              for pair in zip(variables, values)])

    def _present(self, variable: keras.Variable, value: Any) -> tf.Tensor:
        return self._assigned[id(variable)].value if id(variable) in self._assigned else value

    def _initial_value(self, stage: Stage, variable: keras.Variable) -> tf.Tensor:
        """Return the value of a variable before the batch, on the device of the stage."""
        key = (stage.index, id(variable))
        if key not in self._brought:
            known = [value for parts, values in zip(self._variables, self._initial)
                     for own, value in zip(parts.weights + parts.state, values.weights + values.state)
                     if own is variable]
            with tf.device(variable_placement.device_of(variable)):
                value = known[0] if known else variable_placement.read_unwatched(variable)
            with tf.device(stage.device):
                self._brought[key] = tf.identity(value)
        return self._brought[key]


def _aggregate(assigned: Assigned, values: list) -> tf.Tensor:
    if len(values) == 1:
        return values[0]
    if assigned.variable.aggregation == 'mean':
        return device_kinds.call(assigned.device, lambda values: sum(values[1:], values[0]) / len(values), values)
    if assigned.variable.aggregation == 'sum':
        return device_kinds.call(
            assigned.device, lambda before, values: before + sum(value - before for value in values), assigned.before,
            values)
    return values[0]


class Wiring:
    """Traced stages, and the tensors that pass between stages. Each attribute has an entry per stage."""

    def __init__(self) -> None:
        self.programs: list[stage_program.StageProgram] = []
        # pairs (producer, position) that the differentiable inputs come from; producer -1 is the pipeline's input
        self.differentiable_sources: list[list[tuple[int, int]]] = []
        # of each loss that layers add: True for a sum over rows, False for a mean, None if neither is certain
        self.are_sums: list[list[bool | None]] = []
        self._sources: list[list[tuple[int, int]]] = []

    def inputs(self, index: int, outputs_of: Callable[[int], boundary.Boundary]) -> boundary.Boundary:
        """Return the inputs of stage `index`. `outputs_of(-1)` returns the inputs of the pipeline."""
        return _gather(self._sources[index], outputs_of)

    def add(self, stage: Stage, given: boundary.Boundary, structure: boundary.Structure, targets: Any,
            loss: Callable | None, training: bool | None, by_layer: bool) -> None:
        """Trace the next stage; see `trace`. `given` and `structure` describe the pipeline's inputs."""
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
        specs: pair (inputs, targets) for one micro-batch. The inputs are a `Boundary` of `tf.TensorSpec`s. The targets
            are a nest of `tf.TensorSpec`s.
        loss: function `(targets, outputs) -> {name: (sum, weight)}` that runs on the last stage, or None.
        by_layer: whether backward passes run layer by layer, for recompute='layer'.
        is_whole_batch: whether this micro-batch is the whole batch. Then `are_sums` is False for each added loss.
    """
    wiring, (inputs, targets) = Wiring(), specs
    for stage in stages:
        is_last = stage is stages[-1]
        wiring.add(stage, inputs, structure, targets if is_last else (), loss if is_last else None, training, by_layer)
    if is_whole_batch:  # then sums and means get the same factor
        wiring.are_sums = [[False] * len(program.trace.added_losses) for program in wiring.programs]
    else:
        wiring.are_sums = _are_sums(wiring, stages, inputs, structure, training, by_layer)
    return wiring


def _are_sums(wiring: Wiring, stages: list[Stage], inputs: boundary.Boundary, structure: boundary.Structure,
              training: bool | None, by_layer: bool) -> list[list[bool | None]]:
    """Find which added losses are sums over rows, and which are means."""
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
    """Return where each input tensor of a stage comes from, as (producer, position), and the inputs' `Structure`."""
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
