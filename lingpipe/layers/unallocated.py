"""Building layers whose weights are described but never allocated, to count and analyse giant models anywhere."""

import contextlib
import random

import keras
from keras.src.backend.common import global_state

_QUEUE = 'uninitialized_variables'


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
