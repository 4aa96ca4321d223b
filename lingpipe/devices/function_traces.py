"""Which traces of a `tf.function` TensorFlow may use again: none that reads a variable of before a move, or a scope.

A trace reads each Keras variable where it was when it was traced. TensorFlow looks traces up by the types of arguments
and by a context; here the context also says how variables are placed, and what a `keras.StatelessScope` replaces.
"""

import functools
import weakref

from lingpipe.private_api import function_context, stateless_scope

_of_tensorflow = function_context.make_function_context


def forget() -> None:
    """Makes every `tf.function` of this process trace again when it is called next, because variables have moved."""
    function_context.make_function_context = functools.partial(_context, object())


def _context(placement, scope_type=None):
    """Returns TensorFlow's context with the placement of variables, and with the values of a scope."""
    made = _of_tensorflow(scope_type)
    scope = stateless_scope.get_stateless_scope()
    return made._replace(context=(made.context, placement, None if scope is None else _values_of(scope)))


def _values_of(scope):
    """Identifies a scope and its values; an old value lives as long as a trace reads it, so no id comes again."""
    return weakref.ref(scope), tuple(map(id, scope.state_mapping.values()))


function_context.make_function_context = functools.partial(_context, None)
