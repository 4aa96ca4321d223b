"""Calls of workers that die at moments which a real cluster hits only now and then."""

import pytest
import tensorflow as tf
from tensorflow.python.distribute.coordinator import values

from lingpipe.placements import parameter_servers


class Coordinator:
    """Stands in for `ClusterCoordinator`: a function returns the result that a call gets."""

    def schedule(self, function, args):
        return function(*args)

    def done(self):
        return False


class LostOnItsWay(values.RemoteValueImpl):
    """A result whose worker is dead when it is first copied, which the coordinator answers with `then`."""

    def __init__(self, then):
        super().__init__(None, None)
        self._then = [then]
        self._set_values(tf.constant(1.0))

    def _copy_to_local(self):
        if self._then:
            self._then.pop()(self)
            raise tf.errors.UnavailableError(None, None, 'Connection refused')
        return self._values


def answer_of(value):
    calls = parameter_servers.RemoteCalls(Coordinator(), lambda: value, limit=1)
    calls.call(())
    return calls.next_answer(seconds=60)


def test_a_result_that_is_lost_on_its_way_is_that_of_the_call_done_again():
    assert answer_of(LostOnItsWay(lambda value: value._set_values(tf.constant(2.0)))) == 2


def test_a_call_given_up_raises_the_error_of_the_coordinator():
    with pytest.raises(tf.errors.AbortedError, match='a server is lost'):
        answer_of(LostOnItsWay(lambda value: value._set_error(tf.errors.AbortedError(None, None, 'a server is lost'))))
