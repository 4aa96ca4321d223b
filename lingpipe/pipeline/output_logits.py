"""Logits of a model's outputs: what these are the softmax or sigmoid of, which Keras's cross-entropies take in their place."""

import keras
import tensorflow as tf
from keras.src.backend.common import masking

from lingpipe.pipeline import control_flow


def hand_out(units, outputs, values):
    """Has units hand out the logits of a model's outputs too.

    An output that is rounded to 0 or 1 has lost what a cross-entropy needs. Keras hangs the logits on the tensor, from which they
    would fall on its way out of a partition.

    Args:
        units: list of `model_units.Unit`s.
        outputs: list of the numbers of the values that the model returns.
        values: dictionary from the number of a value to the pair of its `tf.TensorSpec` and that of its Keras mask, or None;
            it gets those of the logits.

    Returns:
        The list of units, and the dictionary from places among the outputs to the numbers of their logits.
    """
    found, logits = [], {}
    for unit in units:
        places = {place: unit.outputs.index(number) for place, number in enumerate(outputs) if number in unit.outputs}
        given = [values[number] for number in unit.inputs]
        if places and set(places.values()) <= _positions(unit, given, True) & _positions(unit, given, False):
            numbers = {place: max(values) + 1 + index for index, place in enumerate(places)}
            values.update((number, values[outputs[place]]) for place, number in numbers.items())
            unit = unit.with_logits(list(places.values()), list(numbers.values()))
            logits.update(numbers)
        found.append(unit)
    return found, logits


def _positions(unit, inputs, training):
    """Returns the places among a unit's outputs of those that have logits of their own shape and type."""
    variables, found = [variable for layer in unit.layers for variable in layer.variables], set()

    def run(inputs, values):
        for tensor, mask in inputs:
            masking.set_keras_mask(tensor, mask)
        with keras.StatelessScope(state_mapping=list(zip(variables, values)), initialize_variables=False):
            results = unit([tensor for tensor, _ in inputs], training=training)
        found.update(place for place, tensor in enumerate(results) if _has_logits(tensor))

    try:
        control_flow.until_traced(
            tf.function(run, autograph=False).get_concrete_function,
            inputs, [tf.TensorSpec(variable.shape, variable.dtype) for variable in variables])
    except (TypeError, control_flow.UntranslatableError):
        return set()  # for sizes that the model leaves open
    return found


def _has_logits(tensor):
    logits = getattr(tensor, '_keras_logits', None)
    return logits is not None and logits.graph is tensor.graph and logits.dtype == tensor.dtype and logits.shape == tensor.shape
