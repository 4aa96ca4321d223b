"""A schedule simulated again with durations that were measured."""

from lingpipe.pipeline import simulation
from lingpipe.pipeline.step_times import StepTimes


def replay(schedule, durations, update=(0.0, 0.0)):
    """Runs a schedule on paper, with no time between the end of an action and the start of those that waited for it.

    Unlike `simulation.simulate`, which knows the costs of stages, it takes a duration for each action.

    Args:
        schedule: `Schedule`.
        durations: dictionary from `Action` to seconds; an action that it lacks takes none. Recomputations are actions of kind
            `RECOMPUTE`.
        update: seconds from the end of the last action to the begin of the updates, and what an update takes.

    Returns:
        `StepTimes` that begin at 0.
    """
    spans = simulation.run(schedule, durations)
    begin = max(span.end for span in spans) + update[0]
    return StepTimes(schedule, spans, ((begin, begin + update[1]),) * schedule.num_devices)
