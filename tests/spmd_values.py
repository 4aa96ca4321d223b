"""The values of an SPMD pipeline's stages: tensors `[K, V, ...]`, V stages on each of K cores."""

import tensorflow as tf


def stacked(row):
    """Return the present values of a row of `SpmdPipeline.variables.stages` as one tensor."""
    return tf.stack([tf.stack([variable.value.read_value() for variable in core]) for core in row])


def values_of(pipeline):
    """Return the present `SpmdValues` of an `SpmdPipeline`."""
    return pipeline.variables.map(stacked, lambda variable: variable.value.read_value())


def initial_state(step, pipeline):
    """Return the `SpmdState` with which an `SpmdStep` begins."""
    state = tf.nest.map_structure(lambda spec: tf.zeros(spec.shape, spec.dtype), step.state_specs())
    values = values_of(pipeline)
    return state._replace(values=values, averages=values if state.averages.stages else state.averages)


def found_values(pipeline, values):
    """Return a dictionary from the id of each variable of an `SpmdPipeline` to its entry of `SpmdValues`."""
    variables = pipeline.variables
    found = dict(zip(map(id, [*variables.outer, *variables.outer_state]), [*values.outer, *values.outer_state]))
    for row, value in zip([*variables.stages, *variables.stage_state], [*values.stages, *values.stage_state]):
        found.update((id(variable), each) for variable, each in of_each(row, value))
    return found


def of_each(row, value):
    """Return the list of pairs of a variable and its entry of a tensor `[K, V, ...]`."""
    return [(variable, value[core][round_]) for core, variables in enumerate(row)
            for round_, variable in enumerate(variables)]
