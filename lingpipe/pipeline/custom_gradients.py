"""Functions with gradients of their own inside layers: weights that such a function reads past its arguments would get none."""

import contextlib
import functools

import tensorflow as tf
from tensorflow.python.ops import custom_gradient

from lingpipe.pipeline import graph_pieces


@contextlib.contextmanager
def refusing_hidden_weights(scope):
    """Refuses what TensorFlow finds no gradient for while layers run on tensors in the place of variables.

    It gives the gradient function of a `tf.custom_gradient` the variables that the function has read. Here these are tensors, of
    which it knows the arguments only.

    Args:
        scope: the `stage_scope.StageScope` of the layers that run inside of the `with` block.

    Raises:
        ValueError: a layer calls such a function, and it reads a weight.
    """
    decorator = custom_gradient._graph_mode_decorator

    def checked(function, args, kwargs):
        @functools.wraps(function)
        def run(*arguments):
            results, gradient = function(*arguments)
            _require_arguments(scope, results, arguments)
            return results, gradient

        return decorator(run, args, kwargs)

    custom_gradient._graph_mode_decorator = checked
    try:
        yield
    finally:
        custom_gradient._graph_mode_decorator = decorator


def _require_arguments(scope, results, arguments):
    stops = frozenset(tensor.ref() for tensor in tf.nest.flatten(arguments) if tf.is_tensor(tensor))
    results = [tensor for tensor in tf.nest.flatten(results) if tf.is_tensor(tensor) and tensor.ref() not in stops]
    if not results:
        return
    inner = {id(outer): inner for outer, inner in getattr(results[0].graph, 'captures', [])}
    needed = graph_pieces.ancestors(results, stops=stops)
    hidden = [version.variable.path for version in scope.versions
              if inner.get(id(version.value), version.value).op in needed and version.value.ref() not in stops]
    if hidden:
        raise ValueError(
            f'A layer computes {results[0].name!r} by tf.recompute_grad, keras.remat or tf.custom_gradient, and the function reads '
            f'{hidden[:3]}, to which TensorFlow would hand no gradient inside a partition. Give it the weight as an argument; or leave '
            "it out, and have the pipeline recompute by recompute='layer'.")
