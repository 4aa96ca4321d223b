"""What a mini-batch leaves in moving averages and other variables, of one pipeline or of several replicas."""

from typing import Any, NamedTuple

import tensorflow as tf

from lingpipe.devices import collectives, device_kinds, variable_values


class Assigned(NamedTuple):
    """A variable that layers assign.

    Attributes:
        variable: Keras variable.
        before: tensor, its value before the mini-batch.
        value: tensor, the value that was assigned last.
        device: name of the device that assigned it.
    """

    variable: Any
    before: tf.Tensor
    value: tf.Tensor
    device: str


class State(NamedTuple):
    """What the forward actions of a mini-batch lead to.

    Attributes:
        statistics: list of `BatchStatistics`, one a stage.
        values: list of tensors `[3, channels]`, the statistics of each stage over the rows of the mini-batch.
        assigned: dictionary from the id of a variable to its `Assigned`.
    """

    statistics: list
    values: list
    assigned: dict


def updates(stages, state):
    """Returns pairs (Keras variable, new value) of all that changes.

    Args:
        stages: list of `Stage`s.
        state: `State`.
    """
    changed = {}

    def read(variable):
        return changed[id(variable)][1] if id(variable) in changed else variable_values.read_variable(variable)

    for each in state.assigned.values():
        value = collectives.current().agree_on(each.device, each.variable.aggregation, each.before, each.value)
        changed[id(each.variable)] = (each.variable, value)
    for stage, statistics, values in zip(stages, state.statistics, state.values):
        changed.update((id(variable), (variable, value)) for variable, value in statistics.updates(values, read, stage.device))
    return list(changed.values())


def merge(stages, states):
    """Joins what the replicas made of their shares of a mini-batch.

    Statistics are those of all rows. What layers assigned follows the `aggregation` of its Keras variable: 'mean', 'sum' of the
    changes, else that of the first replica.

    Args:
        stages: list of `Stage`s of the first replica, which do the work.
        states: list of `State`s, one a replica.

    Returns:
        `State`.
    """
    first = states[0]
    values = [device_kinds.call(stage.device, lambda parts, statistics=statistics: _join(statistics, parts), list(parts))
              for stage, statistics, parts in zip(stages, first.statistics, zip(*[state.values for state in states]))]
    assigned = {key: each._replace(value=_aggregate(each, [state.assigned[key].value for state in states]))
                for key, each in first.assigned.items()}
    return State(first.statistics, values, assigned)


def _join(statistics, parts):
    joined = parts[0]
    for part in parts[1:]:
        joined = statistics.merge(joined, part)
    return joined


def _aggregate(assigned, values):
    variable = assigned.variable
    if variable.aggregation == 'mean':
        return device_kinds.call(assigned.device, lambda values: sum(values[1:], values[0]) / len(values), values)
    if variable.aggregation == 'sum':
        return device_kinds.call(
            assigned.device, lambda before, values: before + sum(value - before for value in values), assigned.before, values)
    return values[0]
