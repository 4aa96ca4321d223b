"""Every change that LingPipe makes to TensorFlow, Keras or Python."""

import contextlib
import ctypes
import functools
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import keras
import tensorflow as tf

from lingpipe.private_api import custom_gradient, function_context, stateless_scope

_PRIORITY_OF_FUNCTIONS = 50  # of the variable creator of a tf.function
_Result = TypeVar('_Result')
_context_of_tensorflow = function_context.make_function_context


@contextlib.contextmanager
def checking_custom_gradients(check: Callable[[Any, tuple], None]) -> Iterator[None]:
    """Call `check(results, arguments)` for each `tf.custom_gradient` function traced in the `with` block."""
    # In stages, weights are tensors, which such functions may capture. Captured tensors get no gradients. Unnecessary
    # once `tf.custom_gradient` raises for captured differentiable tensors; TensorFlow 2.21 does not.
    decorator = custom_gradient._graph_mode_decorator

    def checked(function, args, kwargs):
        @functools.wraps(function)
        def run(*arguments):
            results, gradient = function(*arguments)
            check(results, arguments)
            return results, gradient

        return decorator(run, args, kwargs)

    custom_gradient._graph_mode_decorator = checked
    try:
        yield
    finally:
        custom_gradient._graph_mode_decorator = decorator


@contextlib.contextmanager
def recording_moments(norms: Sequence[keras.layers.BatchNormalization], record: Callable) -> Iterator[None]:
    """Call `record(norm, inputs, mask, mean, variance)` when one of `norms` computes moments in the `with` block."""
    # Moving averages change once per batch, by the moments of all micro-batches. Unnecessary once a public method of
    # `keras.layers.BatchNormalization` returns its moments; in Keras 3.15 the method is private.
    keras_call = keras.layers.BatchNormalization.call.__code__

    def moments(norm, inputs, mask):
        mean, variance = type(norm)._moments(norm, inputs, mask)
        if sys._getframe(1).f_code is keras_call:  # a subclass's own call may update its averages in another way
            record(norm, inputs, mask, mean, variance)
        return mean, variance

    try:
        for norm in norms:
            vars(norm)['_moments'] = functools.partial(moments, norm)
        yield
    finally:
        for norm in norms:
            vars(norm).pop('_moments', None)


def call_with_room_for_frames(function: Callable[[], _Result]) -> _Result:
    """Reserve stack memory, which makes calls inside `function` faster, and return the result of `function()`."""
    # CPython stores frames in pieces of 16 KiB. It maps and unmaps memory for each call that does not fit in a piece.
    # Tracing an AmoebaNet makes 80,000 such calls. Unnecessary once CPython keeps a free piece; 3.11 does not.
    return function()


# Its stack of 1 MiB stays untouched. The size of a piece is a power of two, so 1 MiB is left for inner frames.
call_with_room_for_frames.__code__ = call_with_room_for_frames.__code__.replace(co_stacksize=2**17)


@contextlib.contextmanager
def telling_what_failed_first() -> Iterator[None]:
    """Add a note to a `CancelledError` from the `with` block. The note says where to find the cause."""
    # If one device fails, TensorFlow 2.21 often reports only the operations that it then cancelled on other devices.
    # Unnecessary once it reports the first error.
    try:
        yield
    except tf.errors.CancelledError as error:
        if not hasattr(error, '__notes__'):
            error.add_note('Another operation failed before, and cancelled this one. TensorFlow names it in its log: '
                           'read the lines above that begin with W. If there are none, set TF_CPP_MIN_LOG_LEVEL=1.')
        raise


@contextlib.contextmanager
def creating_outside_functions() -> Iterator[None]:
    """Create variables in the `with` block as if no function were being traced."""
    # If the first trace of a `tf.function` creates variables, TensorFlow traces it again, even with `tf.init_scope`
    # around the creation. Unnecessary once `tf.init_scope` suspends the function's variable creator too; in TensorFlow
    # 2.21 the creator stays active.
    graph = tf.compat.v1.get_default_graph()
    creators = graph._variable_creator_stack
    graph._variable_creator_stack = [each for each in creators if each[0] != _PRIORITY_OF_FUNCTIONS]
    try:
        with tf.init_scope():
            yield
    finally:
        graph._variable_creator_stack = creators


def forget_traces() -> None:
    """Make each `tf.function` of this process trace again at its next call. Needed after a variable changes device."""
    # A trace reads each variable at its old place. TensorFlow finds a trace by argument types and a context. To the
    # context, `_context` adds an object that is new after each move, and the values in a `keras.StatelessScope`.
    # Unnecessary once TensorFlow moves variables, and its context includes Keras's scopes.
    function_context.make_function_context = functools.partial(_context, object())


def _context(placement: object | None, scope_type: Any = None) -> Any:
    made, scope = _context_of_tensorflow(scope_type), stateless_scope.get_stateless_scope()
    # An old value lives as long as a trace reads it, so no id is reused.
    values = None if scope is None else (weakref.ref(scope), tuple(map(id, scope.state_mapping.values())))
    return made._replace(context=(made.context, placement, values))


function_context.make_function_context = functools.partial(_context, None)


def never_destroyed(coordinator: Any) -> Any:
    """Keep Python from destroying a `ClusterCoordinator` at exit, and return the coordinator."""
    # Its destructor waits until every lost worker is back. Unnecessary once a coordinator can be closed without
    # waiting.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(coordinator))
    return coordinator
