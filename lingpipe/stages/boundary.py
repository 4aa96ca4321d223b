"""Boundary tensors and their Keras masks."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from lingpipe import patches
from lingpipe.private_api import masking


class Boundary(NamedTuple):
    """The tensors that one stage sends to another for one micro-batch."""

    values: list  # tensors `[micro_batch, ...]`
    masks: dict  # from a position in `values` to the boolean Keras mask of that tensor

    @property
    def differentiable_positions(self) -> list[int]:
        """The positions of the values that have a gradient."""
        return [position for position, value in enumerate(self.values) if is_differentiable(value.dtype)]

    @property
    def differentiable(self) -> list:
        """The values that have a gradient."""
        return [self.values[position] for position in self.differentiable_positions]


class Structure(NamedTuple):
    """The structure of a nest of tensors and Nones."""

    nest: Any  # with True for a value and False for None

    def pack(self, values: Iterable) -> Any:
        """Rebuild the nest from the list of all values that are not None."""
        remaining = iter(values)
        return tf.nest.map_structure(lambda is_value: next(remaining) if is_value else None, self.nest)


def is_differentiable(dtype: Any) -> bool:
    """Return whether tensors of a type have gradients."""
    dtype = tf.as_dtype(dtype)
    return dtype.is_floating or dtype.is_complex


def structure_of(nest: Any) -> Structure:
    """Return the `Structure` of a nest of tensors, specs and Nones."""
    return Structure(tf.nest.map_structure(lambda leaf: leaf is not None, nest))


def unpack(nest: Any) -> Boundary:
    """Convert a nest of tensors and Nones to a `Boundary`, with the Keras masks of the tensors."""
    values = [leaf for leaf in tf.nest.flatten(nest) if leaf is not None]
    masks = enumerate(map(masking.get_keras_mask, values))
    return Boundary(values, {position: mask for position, mask in masks if mask is not None})


def pack(boundary: Boundary, structure: Structure) -> Any:
    """Convert a `Boundary` back to a nest, and put the Keras masks on the tensors."""
    for position, mask in boundary.masks.items():
        masking.set_keras_mask(boundary.values[position], mask)
    return structure.pack(boundary.values)


def put_masks_on(inputs: Any, mask: Any) -> Any:
    """Return `inputs` with Keras masks on the tensors.

    Args:
        inputs: nest of tensors `[batch, ...]` and Nones.
        mask: nest with a boolean tensor or None for each input, in the same order. None means no masks.
    """
    masks = keras.tree.flatten(mask)
    if all(leaf is None for leaf in masks):
        return inputs
    copies = [leaf if leaf is None else tf.identity(leaf) for leaf in tf.nest.flatten(inputs)]
    _attach(copies, [leaf if leaf is None else tf.convert_to_tensor(leaf) for leaf in masks])
    return tf.nest.pack_sequence_as(inputs, copies)


class MaskedFunction:
    """A `tf.function` that preserves the Keras masks of arguments and results."""

    def __init__(self, method: Callable) -> None:
        def inside(masks: list, *arguments: Any) -> tuple:
            _attach(tf.nest.flatten(arguments), masks)
            results = method(*arguments)
            return results, _masks(results)

        self._inside = tf.function(inside, autograph=False)

    def __call__(self, *arguments: Any) -> Any:
        results, masks = self._inside(_masks(arguments), *arguments)
        _attach(tf.nest.flatten(results), masks)
        return results


def _masks(nest: Any) -> list:
    return [masking.get_keras_mask(leaf) if tf.is_tensor(leaf) else None for leaf in tf.nest.flatten(nest)]


def _attach(leaves: list, masks: list) -> None:
    for leaf, mask in zip(leaves, masks):
        if mask is not None:
            masking.set_keras_mask(leaf, mask)


def traced(function: Callable, *arguments: Any) -> Any:
    """Call a `tf.function` as a graph, even after `tf.config.run_functions_eagerly(True)`."""
    eagerly = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(False)
    try:
        with patches.telling_what_failed_first():
            return function(*arguments)
    finally:
        tf.config.run_functions_eagerly(eagerly)
