"""Checks that a Keras model accepts what an input makes, before any layer is traced."""

from typing import Any

import keras
import tensorflow as tf

from lingpipe.keras_graph import model_units


def refuse_unfit(model: keras.Model, functional: Any, given: Any) -> None:
    """Raises ValueError if a model takes other sizes than an input makes.

    Args:
        model: built model.
        functional: the graph that Keras holds for it.
        given: nest of `tf.TensorSpec` `[batch, ...]` that the input makes, with all inputs of the model.
    """
    specs = model_units.flat_inputs(functional, given)
    for tensor, spec in zip(functional.inputs, specs):
        if spec is not None:  # an optional input
            _refuse_shape(model, tensor, _sizes(spec))
    refuse_long(model, functional, specs)


def _refuse_shape(model, tensor, made):
    """Refuses other sizes; if there is one dimension more or less, Keras tries to adapt it."""
    taken = _sizes(tensor)
    if len(taken) == len(made) and any(None not in sizes and len(set(sizes)) > 1 for sizes in zip(taken, made)):
        raise ValueError(f'Model {model.name!r} takes examples of shape {taken} for {tensor.name!r}, but the input '
                         f'makes {made}. Change one of them, such as image_shape in backbone_arguments, or the dataset '
                         'and the image_size of the input.')


def refuse_long(model: keras.Model, functional: Any, tensors: list) -> None:
    """Raises ValueError for tokens at positions without an embedding; XLA would use the embeddings of other positions.

    Args:
        model: built model.
        functional: the graph that Keras holds for it.
        tensors: list of objects with a shape `[batch, ...]`, one for each input of the graph, or None.
    """
    sizes = [layer.sequence_length for layer in model._flatten_layers()
             if hasattr(layer, 'position_embeddings') and hasattr(layer, 'sequence_length')]
    for symbol, tensor in zip(functional.inputs, tensors):
        length = _sizes(tensor)[0] if symbol.name.endswith('token_ids') and tensor is not None else None
        if sizes and length is not None and length > max(sizes):
            raise ValueError(f'sequence_length={length} of {symbol.name!r} is too long for model '
                             f'{model.name!r}, which knows {max(sizes)} positions. Set it to {max(sizes)} at most; a '
                             'model without a preset has max_sequence_length in its backbone_arguments.')


def _sizes(tensor):
    """Returns the list of the sizes of an example; None if one is unknown."""
    shape = tf.TensorShape(tensor.shape)
    return [None] if shape.rank is None else shape.as_list()[1:]
