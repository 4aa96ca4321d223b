"""A schedule simulated again with durations that were measured."""

from lingpipe.pipeline.action import BACKWARD
from lingpipe.pipeline.step_times import RECOMPUTE, StepTimes
from lingpipe.pipeline.timeline import Span


def replay(schedule, durations, update=(0.0, 0.0)):
    """Runs a schedule on paper, with no time between the end of an action and the start of those that waited for it.

    Unlike `simulation.simulate`, which knows the costs of stages, it takes a duration for each action; and recomputation
    does not wait for gradients, as in the `Execution`.

    Args:
        schedule: `Schedule`.
        durations: dictionary from `Action` to seconds; an action that it lacks takes none. Recomputations are actions of kind
            `RECOMPUTE`.
        update: seconds from the end of the last action to the begin of the updates, and what an update takes.

    Returns:
        `StepTimes` that begin at 0.
    """
    free, ends, spans = [0.0] * schedule.num_devices, {}, []

    def run(device, action, ready):
        start = max([free[device], *ready])
        ends[action] = free[device] = start + durations.get(action, 0.0)
        spans.append(Span(device, action, start, ends[action]))

    for action in schedule.execution_order():
        device, recomputation = schedule.device_of(action.stage), action._replace(kind=RECOMPUTE)
        if action.kind == BACKWARD and recomputation in durations:
            run(device, recomputation, [])
        run(device, action, [ends[needed] for needed in schedule.dependencies(action)])
    begin = max(free) + update[0]
    return StepTimes(
        schedule, tuple(sorted(spans, key=lambda span: (span.start, span.end, span.device))),
        ((begin, begin + update[1]),) * schedule.num_devices)
