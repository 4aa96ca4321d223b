"""What a mini-batch leaves in moving averages and other state, of one pipeline or of several replicas."""

from typing import NamedTuple

import tensorflow as tf

from lingpipe.distribute import across_replicas, device_calls
from lingpipe.pipeline import variable_values


class StageState(NamedTuple):
    """The state of one stage after all forward actions.

    Attributes:
        statistics: statistics of batch norm `[2, channels]` over the rows of the mini-batch.
        initial: list of tensors, the other state before the mini-batch.
        new: list of tensors, the same after it.
    """

    statistics: tf.Tensor
    initial: list
    new: list


def updates(stages, training, states):
    """Returns pairs (Keras variable, new value) of all that changes.

    Args:
        stages: list of `Stage`s.
        training: Python boolean.
        states: list of `StageState`s, one a stage.
    """
    found, changed = [], {}

    def read(variable):
        return changed[id(variable)] if id(variable) in changed else variable_values.read_variable(variable)

    for stage, state in zip(stages, states):
        new = stage.statistics(training).updates(state.statistics, read, stage.device)
        new += [(variable, across_replicas.agree_on(stage.device, variable.aggregation, old, value))
                for variable, value, old in zip(stage.variables(training).state, state.new, state.initial) if value is not old]
        changed.update((id(variable), value) for variable, value in new)
        found += new
    return list({id(variable): (variable, changed[id(variable)]) for variable, _ in found}.values())


def merge(stage, training, states, rows):
    """Joins what the replicas of a stage made of their shares of a mini-batch.

    Statistics are those of all rows. Other state follows the `aggregation` of its Keras variable: 'mean', 'sum' of the changes,
    else that of the first replica.

    Args:
        stage: `Stage` of the first replica, which does the work.
        training: Python boolean.
        states: list of `StageState`s, one a replica.
        rows: list of the numbers of rows of the replicas, integers or scalar tensors.

    Returns:
        `StageState`.
    """
    merged = device_calls.call(
        stage.device, lambda parts, rows: _join(stage.statistics(training), parts, rows),
        [state.statistics for state in states], [tf.cast(count, tf.int64) for count in rows])
    first = states[0]
    new = [_aggregate(variable, old, [state.new[index] for state in states], stage.device)
           for index, (variable, old) in enumerate(zip(stage.variables(training).state, first.initial))]
    return StageState(merged, first.initial, new)


def _join(statistics, parts, rows):
    joined, seen = parts[0], rows[0]
    for part, count in zip(parts[1:], rows[1:]):
        seen += count
        joined = statistics.merge(joined, part, tf.math.divide_no_nan(tf.cast(count, tf.float32), tf.cast(seen, tf.float32)),
                                  tf.equal(count, 0))
    return joined


def _aggregate(variable, old, values, device):
    if values[0] is old or variable.aggregation not in ('mean', 'sum'):
        return values[0]
    if variable.aggregation == 'mean':
        return device_calls.call(device, lambda values: sum(values[1:], values[0]) / len(values), values)
    return device_calls.call(device, lambda old, values: old + sum(value - old for value in values), old, values)
