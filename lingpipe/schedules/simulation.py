"""Simulation of a step, from the costs of stages or from measured durations."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from lingpipe.schedules.timeline import BACKWARD, FORWARD, RECOMPUTE, WEIGHT, Action, Span, StepTimes


@dataclasses.dataclass(frozen=True)
class StageCosts:
    """Times that a stage takes for one micro-batch. All times have the same unit, such as milliseconds."""

    forward: float = 1.0
    backward: float = 1.0  # of the gradients of inputs
    weight_gradient: float = 1.0  # of the gradients of weights: a W, or a part of a B that has no W
    recompute: float = 0.0  # of recomputing the activations before B, without B itself; 0 if they are kept
    transfer: float = 0.0  # of sending the output to the next stage's device, or its gradient back
    update: float = 0.0  # of the stage's weights, once per step

    def __post_init__(self) -> None:
        for field, value in dataclasses.asdict(self).items():
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(
                    f'{field}={value!r} is not a valid duration: it must be a finite number of 0 or more. '
                    'Measure it again.')

    def scaled(self, factor: float) -> 'StageCosts':
        """Return the costs of a stage that is `factor` times as large."""
        return StageCosts(*(value * factor for value in dataclasses.astuple(self)))


def simulate(schedule: Any, costs: StageCosts | Sequence[StageCosts] | None = None) -> StepTimes:
    """Simulate a step. Each action starts when its device is free and its data have arrived.

    Recomputation (R) is a separate action before B. An R does not wait for gradients, and fills part of the bubble::

        device 0  F0F1......B1--R0B0--      B1 follows its own F1, whose activations still exist
        device 1  ..F0F1B1--R0B0--....

    Sending keeps no device busy. The updates begin when all devices have finished their actions.

    Args:
        costs: one `StageCosts` for all stages, or a list with one per stage; None: each F, each W and each B
            that has a W takes `num_devices / num_stages`. Any other B takes twice as long.

    Raises:
        ValueError: the number of costs differs from the number of stages, or the schedule never ends.
    """
    stage_costs = _costs_of_stages(schedule, costs)
    durations = {action: _duration(action.kind, stage_costs[action.stage], schedule.is_split(action))
                 for actions in schedule.device_actions for action in actions}
    durations |= {action._replace(kind=RECOMPUTE): stage_costs[action.stage].recompute
                  for action in schedule.backwards() - schedule.backwards_after_own_forward()
                  if stage_costs[action.stage].recompute}
    spans = run(schedule, durations, [cost.transfer for cost in stage_costs])
    begin = max(span.end for span in spans)  # clipping needs the norm of all gradients
    ends = [begin] * schedule.num_devices
    for stage, cost in enumerate(stage_costs):
        ends[schedule.device_of(stage)] += cost.update
    return StepTimes(schedule, spans, tuple((begin, end) for end in ends))


def run(schedule: Any, durations: Mapping[Action, float], transfers: Sequence[float] | None = None) -> tuple[Span, ...]:
    """Simulate all actions, from time 0. Return their `Span`s in order of start.

    Args:
        durations: time of each action, including actions of kind `RECOMPUTE`. A missing action takes no time.
        transfers: for each stage, `StageCosts.transfer`; None: sending takes no time.
    """
    free = [0.0] * schedule.num_devices
    ends: dict[Action, float] = {}
    spans: list[Span] = []
    transfers = transfers or [0.0] * schedule.num_stages

    def start(device: int, action: Action, arrivals: Any) -> None:
        begin, seconds = max([free[device], *arrivals]), durations.get(action, 0.0)
        ends[action] = begin + seconds
        if seconds or action.kind == FORWARD:  # else nothing runs, as for the first stage's B if it is split
            free[device] = ends[action]
        spans.append(Span(device, action, begin, ends[action]))

    for action in schedule.execution_order():
        device, recomputation = schedule.device_of(action.stage), action._replace(kind=RECOMPUTE)
        if action.kind == BACKWARD and recomputation in durations:
            start(device, recomputation, [])
        start(device, action, [
            ends[needed] + (transfers[min(needed.stage, action.stage)]  # in both directions that of the earlier stage
                            if schedule.device_of(needed.stage) != device else 0.0)
            for needed in schedule.dependencies(action)])
    return tuple(sorted(spans, key=lambda span: (span.start, span.end, span.device)))


def _costs_of_stages(schedule: Any, costs: Any) -> list[StageCosts]:
    if costs is None:
        costs = StageCosts().scaled(schedule.num_devices / schedule.num_stages)
    if isinstance(costs, StageCosts):
        return [costs] * schedule.num_stages
    if len(costs) != schedule.num_stages:
        raise ValueError(
            f'costs has {len(costs)} entries, the schedule {schedule.num_stages} stages on {schedule.num_devices} '
            'devices. Give one StageCosts for each stage, or one for all.')
    return list(costs)


def _duration(kind: str, cost: StageCosts, is_split: bool) -> float:
    backward = cost.backward + (0.0 if is_split else cost.weight_gradient)
    return {FORWARD: cost.forward, BACKWARD: backward, WEIGHT: cost.weight_gradient}[kind]


def replay(schedule: Any, durations: Sequence[Mapping[Action, float]],
           update: tuple[float, float] = (0.0, 0.0)) -> StepTimes:
    """Simulate a step of all replicas from measured durations.

    Args:
        durations: for each replica, the seconds of each action; see `run`.
        update: seconds from the last action to the updates, and seconds that each device's update takes.
    """
    spans = [span._replace(device=replica * schedule.num_devices + span.device)
             for replica, seconds in enumerate(durations) for span in run(schedule, seconds)]
    begin = max(span.end for span in spans) + update[0]  # replicas wait for each other only before the updates
    updates = ((begin, begin + update[1]),) * (len(durations) * schedule.num_devices)
    return StepTimes(schedule, tuple(sorted(spans, key=lambda span: span.start)), updates, len(durations))
