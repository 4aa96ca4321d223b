"""What crosses from one stage to the next: the tensors of any nest, without its holes, and their Keras masks."""

from typing import Any, NamedTuple

import tensorflow as tf


class Boundary(NamedTuple):
    """The tensors that one stage hands to another for one micro-batch.

    Attributes:
        values: list of tensors `[micro_batch, ...]`.
        masks: dictionary from a position in `values` to the boolean Keras mask of that tensor.
    """

    values: list
    masks: dict

    @property
    def differentiable_positions(self):
        """Positions of the values that have a gradient."""
        return [position for position, value in enumerate(self.values) if is_differentiable(value.dtype)]

    @property
    def differentiable(self):
        """The values that have a gradient."""
        return [self.values[position] for position in self.differentiable_positions]


class Structure(NamedTuple):
    """The nest that a list of values came from.

    Attributes:
        nest: the nest, with True for a value and False for None.
    """

    nest: Any

    def pack(self, values):
        """Returns the nest with `values` in their places."""
        remaining = iter(values)
        return tf.nest.map_structure(lambda is_value: next(remaining) if is_value else None, self.nest)


def is_differentiable(dtype):
    """Whether tensors of a type have gradients."""
    dtype = tf.as_dtype(dtype)
    return dtype.is_floating or dtype.is_complex


def structure_of(nest):
    """Returns the `Structure` of a nest of tensors (or specs) and Nones."""
    return Structure(tf.nest.map_structure(lambda leaf: leaf is not None, nest))


def list_structure(count):
    """Returns the `Structure` of a plain list of `count` values."""
    return Structure([True] * count)


def unpack(nest):
    """Takes a nest apart.

    Args:
        nest: nest of tensors, Nones among them.

    Returns:
        `Boundary` with the masks that Keras layers left on the tensors.
    """
    values = [leaf for leaf in tf.nest.flatten(nest) if leaf is not None]
    masks = {position: _mask(value) for position, value in enumerate(values) if _mask(value) is not None}
    return Boundary(values, masks)


def pack(boundary, structure):
    """Puts a nest together again, its masks where Keras layers look for them.

    Args:
        boundary: `Boundary`.
        structure: `Structure` of the nest.
    """
    for position, mask in boundary.masks.items():
        boundary.values[position]._keras_mask = mask
    return structure.pack(boundary.values)


def _mask(tensor):
    return getattr(tensor, '_keras_mask', None)
