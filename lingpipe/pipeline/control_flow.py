"""Layers whose Python branches or loops on tensors: what a trace cannot follow as it stands, AutoGraph translates."""

import contextlib
import re
import weakref

import keras
import tensorflow as tf
from keras.src.backend.common import stateless_scope
from tensorflow.python.autograph.core import ag_ctx

_NOT_USERS = ('keras', 'lingpipe', 'tensorflow')
_TRANSLATED = weakref.WeakSet()


class UntranslatableError(ValueError):
    """Python that branches or loops on tensors as no graph can; the message names the layer."""


def run(layer, function):
    """Calls a layer so that the Python of users' layers, in it too, may branch and loop on tensors, as it may where Keras is eager.

    Translation takes time, and few layers need it: the call is tried without first. A layer that needed it once is always
    translated.

    Args:
        layer: Keras layer or operation.
        function: function without arguments that calls it.

    Returns:
        What the function returns.

    Raises:
        UntranslatableError: the layer branches or loops on a tensor, and AutoGraph does not help.
    """
    if layer in _TRANSLATED:
        with _translated(layer):
            return function()
    try:
        with _undone_on_failure():
            return function()
    except TypeError as error:  # TensorFlow's for a tensor in the place of a Python boolean, integer or list
        try:
            with _undone_on_failure(), _translated(layer):
                result = function()
        except Exception as failure:
            raise _as_refusal(error, layer, failure) from None
        _TRANSLATED.add(layer)
        return result


def _as_refusal(error, layer, failure):
    if not isinstance(error, tf.errors.OperatorNotAllowedInGraphError):
        return error
    reason = next((line.strip() for line in reversed(str(failure).splitlines()) if re.match(r'\s+\w+Error: ', line)), str(failure))
    return UntranslatableError(
        f'Layer {layer.name!r} branches or loops on a tensor, and AutoGraph cannot make a graph of it ({reason}). Give its inputs '
        'shapes that are known if it asks for sizes; else write keras.ops.cond, keras.ops.where or keras.ops.while_loop there.')


@contextlib.contextmanager
def _translated(layer):
    """Keras calls the layers inside of a layer itself, untranslated, so each of them is given what is translated."""
    context = ag_ctx.ControlStatusCtx(ag_ctx.Status.ENABLED)
    with contextlib.ExitStack() as stack:
        for attributes, name, function in _functions_of_users(layer):
            translated = tf.__internal__.autograph.tf_convert(function, context)
            stack.enter_context(_replaced(attributes, name, translated))
        yield


def _functions_of_users(layer):
    """Returns, for every layer in a layer whose code is a user's, its attributes, the name of the one to replace, and the function."""
    functions = []
    for part in layer._flatten_layers() if isinstance(layer, keras.layers.Layer) else []:  # pylint: disable=protected-access
        if isinstance(part, keras.layers.Lambda):
            functions.append((vars(part), 'function', part.function))
        elif type(part).call.__module__.partition('.')[0] not in _NOT_USERS:
            functions.append((vars(part), 'call', part.call))
    return functions


@contextlib.contextmanager
def _replaced(attributes, name, value):
    before = {name: attributes[name]} if name in attributes else {}
    attributes[name] = value
    try:
        yield
    finally:
        del attributes[name]
        attributes.update(before)


@contextlib.contextmanager
def _undone_on_failure():
    """A call that fails midway leaves no added losses and no new values of variables behind."""
    scope = stateless_scope.get_stateless_scope()
    values, losses = (dict(scope.state_mapping), list(scope.losses)) if scope else ({}, [])
    try:
        yield
    except Exception:
        if scope:
            scope.state_mapping, scope.losses = values, losses
        raise
