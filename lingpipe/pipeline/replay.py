"""A schedule simulated again with durations that were measured."""

from lingpipe.pipeline import simulation
from lingpipe.pipeline.step_times import StepTimes


def replay(schedule, durations, update=(0.0, 0.0)):
    """Runs a schedule on paper, with no time between the end of an action and the start of those that waited for it.

    Unlike `simulation.simulate`, which knows the costs of stages, it takes a duration for each action. Replicas do not wait for
    each other before the updates.

    Args:
        schedule: `Schedule` of each replica.
        durations: for each replica, the dictionary from `Action` to seconds; an action that it lacks takes none. Recomputations
            are actions of kind `RECOMPUTE`.
        update: seconds from the end of the last action to the begin of the updates, and what an update takes.

    Returns:
        `StepTimes` that begin at 0.
    """
    spans = [span._replace(device=replica * schedule.num_devices + span.device)
             for replica, seconds in enumerate(durations) for span in simulation.run(schedule, seconds)]
    begin = max(span.end for span in spans) + update[0]
    updates = ((begin, begin + update[1]),) * (len(durations) * schedule.num_devices)
    return StepTimes(schedule, tuple(sorted(spans, key=lambda span: span.start)), updates, len(durations))
