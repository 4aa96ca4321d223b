"""Tracing of layers whose Python branches or loops on tensors, by AutoGraph if a plain trace fails."""

import contextlib
import re
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from lingpipe.private_api import ag_ctx

_NOT_USERS = ('keras', 'lingpipe', 'tensorflow')
_TRANSLATED: weakref.WeakSet = weakref.WeakSet()


class UntranslatedError(TypeError):
    """A trace found a layer that AutoGraph has to translate in the next trace. The message is TensorFlow's."""


class UnreachableError(ValueError):
    """A layer assigns a variable inside a function, loop or branch of its own; the message names it."""

    __init__ = Exception.__init__  # AutoGraph raises classes with another constructor as StagingError


class UntranslatableError(ValueError):
    """A layer branches or loops on tensors in a way that no graph can; the message names it."""


def until_traced(trace: Callable, *arguments: Any) -> Any:
    """Call a function that traces layers, and call it again whenever a layer turns out to need translation.

    Translation takes time, and few layers need it, so the first trace does not translate.
    """
    while True:
        try:
            return trace(*arguments)
        except UntranslatedError:
            pass  # each round translates one more layer


@contextlib.contextmanager
def functions_laid_out() -> Iterator[None]:
    """Inline calls of `tf.function`s: the operations inside them are traced into the calling graph."""
    eagerly = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(eagerly)


def run(layer: Any, function: Callable[[], Any]) -> Any:
    """Call a layer so that the Python of users' layers, including nested ones, may branch and loop on tensors.

    Args:
        layer: Keras layer or operation.
        function: function without arguments that calls the layer.

    Raises:
        UntranslatedError: the layer needs translation; `until_traced` catches this and traces again.
        UntranslatableError: the layer branches or loops on a tensor, and AutoGraph does not help.
    """
    if layer in _TRANSLATED:
        return _run_translated(layer, function)
    try:
        return function()
    except UntranslatedError:
        raise
    except TypeError as error:  # TensorFlow found a tensor instead of a Python boolean, integer or list
        if tf.executing_eagerly() or not _functions_of_users(layer):
            raise
        _TRANSLATED.add(layer)
        raise UntranslatedError(str(error)) from error


def _run_translated(layer: keras.layers.Layer, function: Callable) -> Any:
    """Call the translated layer; if translation fails, inputs with more known sizes may still need no translation."""
    try:
        with _translated(layer):
            return function()
    except Exception as error:
        if isinstance(error, UnreachableError):
            raise
        _TRANSLATED.discard(layer)
        if isinstance(error, TypeError) and not isinstance(error, tf.errors.OperatorNotAllowedInGraphError):
            raise
        reason = re.findall(r'^\s*(\w+Error: .*)$', str(error), re.MULTILINE) or [str(error)]
        raise UntranslatableError(
            f'Layer {layer.name!r} branches or loops on a tensor, and AutoGraph makes no graph of it: {reason[-1]} '
            'Give its inputs known shapes where it asks for sizes; else write keras.ops.cond, where or while_loop '
            'there.') from error


@contextlib.contextmanager
def _translated(layer: keras.layers.Layer) -> Any:
    """Give each nested layer its translated function, because Keras itself calls the untranslated one."""
    context = ag_ctx.ControlStatusCtx(ag_ctx.Status.ENABLED)
    with contextlib.ExitStack() as stack:
        for attributes, name, function in _functions_of_users(layer):
            translated = tf.__internal__.autograph.tf_convert(function, context)
            stack.enter_context(_replaced(attributes, name, translated))
        yield


def _functions_of_users(layer: keras.layers.Layer) -> Any:
    """Return (attributes, name of the one to replace, function) for every nested layer with a user's own code."""
    functions = []
    # pylint: disable-next=protected-access
    for part in layer._flatten_layers() if isinstance(layer, keras.layers.Layer) else []:
        if isinstance(part, keras.layers.Lambda):
            functions.append((vars(part), 'function', part.function))
        elif type(part).call.__module__.partition('.')[0] not in _NOT_USERS:
            functions.append((vars(part), 'call', part.call))
    return functions


@contextlib.contextmanager
def _replaced(attributes: dict, name: str, value: Any) -> Any:
    before = {name: attributes[name]} if name in attributes else {}
    attributes[name] = value
    try:
        yield
    finally:
        del attributes[name]
        attributes.update(before)
