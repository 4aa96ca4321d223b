"""Keras masks, which hang on tensors, on their way into and out of what drops them: a cast, a reshape, a `tf.function`."""

import keras
import tensorflow as tf

from lingpipe.private_api import masking


def put_on(inputs, mask):
    """Returns the inputs with their masks on them.

    Args:
        inputs: nest of tensors `[batch, ...]` and Nones.
        mask: nest of boolean tensors and Nones, one an input, in the order of `inputs`; None: leave the inputs as they are.
    """
    masks = keras.tree.flatten(mask)
    if all(leaf is None for leaf in masks):
        return inputs
    copies = [leaf if leaf is None else tf.identity(leaf) for leaf in tf.nest.flatten(inputs)]
    _attach(copies, [leaf if leaf is None else tf.convert_to_tensor(leaf) for leaf in masks])
    return tf.nest.pack_sequence_as(inputs, copies)


class Function:
    """A `tf.function` of a method whose arguments and results are nests with masked tensors among them.

    Args:
        method: function.
    """

    def __init__(self, method):
        def inside(masks, *arguments):
            _attach(tf.nest.flatten(arguments), masks)
            results = method(*arguments)
            return results, _masks(results)

        self._inside = tf.function(inside, autograph=False)

    def __call__(self, *arguments):
        results, masks = self._inside(_masks(arguments), *arguments)
        _attach(tf.nest.flatten(results), masks)
        return results

    def experimental_get_tracing_count(self):
        """Returns how often it was traced; see `tf.function`."""
        return self._inside.experimental_get_tracing_count()


def _masks(nest):
    return [masking.get_keras_mask(leaf) if tf.is_tensor(leaf) else None for leaf in tf.nest.flatten(nest)]


def _attach(leaves, masks):
    for leaf, mask in zip(leaves, masks):
        if mask is not None:
            masking.set_keras_mask(leaf, mask)
