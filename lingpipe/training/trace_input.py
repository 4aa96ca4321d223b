"""How long the devices waited for the input, beside what they did with it."""

import statistics

_LARGE_PERCENT = 5


def percent(steps):
    """Returns the share of the time from asking for a batch to the end of its update in which it was waited for.

    Args:
        steps: list of `StepTimes`.
    """
    return statistics.fmean(100 * step.input_seconds / (step.input_seconds + step.seconds) for step in steps)


def shares(steps, parts):
    """Returns the shares of a step with the waiting for input as one of them; they add up to 100.

    Args:
        steps: list of `StepTimes`.
        parts: dictionary from name to share of the step without that waiting, in per cent, which add up to 100.

    Returns:
        Dictionary from name to per cent; that of `parts` where no waiting for input was measured.
    """
    if not any(step.input_wait for step in steps):
        return parts
    waited = percent(steps)
    return {'input': waited, **{name: share * (100 - waited) / 100 for name, share in parts.items()}}


def advice(steps):
    """Returns the sentence about an input that is waited for, or None."""
    waited = percent(steps)
    if waited < _LARGE_PERCENT:
        return None
    return (f'Devices wait for input in {waited:.0f} % of the step: make batches ahead and in parallel (prefetch and '
            "num_parallel_calls at None), keep images in memory (cache='encoded' or 'decoded'), or share the work out "
            '(num_hosts, data_service).')
