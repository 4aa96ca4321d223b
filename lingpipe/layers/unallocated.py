"""When Keras allocates the weights of layers: never, to count and analyse giant models anywhere, or at once."""

import contextlib
import random

import keras
import tensorflow as tf

from lingpipe.private_api import global_state

_QUEUE, _SCOPE = 'uninitialized_variables', 'stateless_scope'
_PRIORITY_OF_FUNCTIONS = 50  # of what a tf.function does when a variable is made


@contextlib.contextmanager
def unallocated_variables():
    """Inside this scope Keras variables have a shape and a dtype but no value and no memory.

    Keras queues such variables for allocation when an ordinary scope closes next; this scope takes its own out of the
    queue. It also leaves Python's random state as it was, so that a model built afterwards starts from the same weights.
    """
    queued = list(global_state.get_global_attribute(_QUEUE) or [])
    random_state = random.getstate()
    try:
        with keras.StatelessScope(initialize_variables=False):
            yield
    finally:
        global_state.set_global_attribute(_QUEUE, queued)
        random.setstate(random_state)


@contextlib.contextmanager
def allocated_variables():
    """Inside this scope variables get their values at once, on the device in scope, even while Keras runs a model symbolically.

    Keras would allocate them when that is over, outside of every device scope. Inside `unallocated_variables` it changes nothing.
    """
    outer = global_state.get_global_attribute(_SCOPE)
    if outer is not None and not outer.initialize_variables:
        yield
        return
    with outside_of_scopes():
        yield


@contextlib.contextmanager
def outside_of_scopes():
    """Inside this scope variables are made as if no model was being run symbolically or only described, and no function traced.

    A `tf.function` in whose first trace variables are made is traced again, even where `tf.init_scope` has made them.
    """
    outer, graph = global_state.get_global_attribute(_SCOPE), tf.compat.v1.get_default_graph()
    creators = graph._variable_creator_stack
    global_state.set_global_attribute(_SCOPE, None)
    graph._variable_creator_stack = [each for each in creators if each[0] != _PRIORITY_OF_FUNCTIONS]
    try:
        with tf.init_scope():
            yield
    finally:
        graph._variable_creator_stack = creators
        global_state.set_global_attribute(_SCOPE, outer)
