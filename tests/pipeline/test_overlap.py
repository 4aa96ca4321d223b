"""Devices work at the same time: actions that wait for each other all go on, however slow the machine is."""

import collections
import threading
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from lingpipe.layers.keras_params import KerasParams
from tests.pipeline.small_stacks import dense, squared_error
from tests.plain_stack import make_pipe

layers = keras.layers

NUM_MICRO_BATCHES = 6
X, Y = np.ones((12, 4), np.float32), np.ones((12, 4), np.float32)


class Meetings:
    """The m-th action of the stage that works ahead and the (m - 1)-th of the other one wait for each other.

        ahead    0 | 1 | 2 | 3          Where the devices take turns, nobody comes: the first who has
        behind       | 0 | 1 | 2 | 3    waited in vain lets all others go on without waiting.

    Args:
        ahead: the stage that works ahead in each direction: {'F': 0, 'B': 1}; {}: nobody waits.
        patience: seconds until somebody who waits gives up; only a test that fails takes as long.
    """

    def __init__(self, ahead, patience=60.):
        self.actions = []
        self.num_met = collections.Counter()
        self._ahead = ahead
        self._patience = patience
        self._lock = threading.Lock()
        self._turns = collections.Counter()
        self._barriers = collections.defaultdict(lambda: threading.Barrier(2))

    def attend(self, direction, stage):
        with self._lock:
            self.actions.append((direction, stage, 'begins'))
            meeting = self._turns[direction, stage] + (stage != self._ahead.get(direction))
            self._turns[direction, stage] += 1
            barrier = self._barriers[direction, meeting]
        if direction in self._ahead and 0 < meeting < NUM_MICRO_BATCHES:
            self._wait(barrier, direction)
        time.sleep(0.005)  # so that an action that begins too early is seen
        self.actions.append((direction, stage, 'ends'))

    def _wait(self, barrier, direction):
        try:
            barrier.wait(self._patience)
        except threading.BrokenBarrierError:
            self._patience = 0.
        else:
            with self._lock:
                self.num_met[direction] += 1


class Attending(layers.Layer):
    """Passes its inputs on, in both directions, and attends the meetings that its class holds at the moment."""

    meetings = Meetings({})

    def __init__(self, stage, side_effect='none', **kwargs):
        super().__init__(**kwargs)
        self.stage = stage
        self.side_effect = side_effect

    def call(self, inputs):
        if self.side_effect == 'print':
            tf.print('stage', self.stage, tf.reduce_sum(inputs), output_stream='file:///dev/null')
        if self.side_effect == 'assert':
            tf.debugging.assert_all_finite(inputs, 'not finite')
            tf.debugging.assert_less(inputs, 1e6)
        if self.side_effect == 'random':
            inputs += tf.random.uniform(tf.shape(inputs))

        @tf.custom_gradient
        def attended(x):
            return self._attend(x, 'F'), lambda upstream: self._attend(upstream, 'B')

        return attended(inputs)

    def _attend(self, x, direction):
        def attend(value):
            Attending.meetings.attend(direction, self.stage)
            return value

        attended = tf.numpy_function(attend, [x], x.dtype)
        attended.set_shape(x.shape)
        return attended


def attending_stack(side_effect='none'):
    return [dense(4), KerasParams(Attending, stage=0, side_effect=side_effect),
            dense(4), KerasParams(Attending, stage=1, side_effect=side_effect)]


def value_and_grad(pipe):
    pipe.value_and_grad(squared_error, X, Y)


def call_under_a_tape(pipe):
    with tf.GradientTape() as tape:
        loss = squared_error(Y, pipe(X, training=True))
    tape.gradient(loss, pipe.trainable_variables)


def steps_in_a_loop(pipe):
    """As a training program runs them: several in one function."""

    @tf.function(autograph=False)
    def steps():
        return tf.while_loop(
            lambda step, loss: step < 1,
            lambda step, loss: (step + 1, pipe.value_and_grad(squared_error, X, Y, step=step, assign_state=False).loss),
            (0, 0.0))

    steps()


@pytest.fixture(name='hold_meetings')
def hold_meetings_fixture(monkeypatch):
    def hold_meetings(ahead):
        meetings = Meetings(ahead)
        monkeypatch.setattr(Attending, 'meetings', meetings)
        return meetings

    return hold_meetings


@pytest.mark.parametrize('run, recompute, side_effect', [
    (value_and_grad, 'stage', 'none'), (value_and_grad, 'none', 'none'), (value_and_grad, 'stage', 'print'),
    (value_and_grad, 'stage', 'assert'), (value_and_grad, 'none', 'random'), (call_under_a_tape, 'stage', 'print'),
    (steps_in_a_loop, 'stage', 'print')])
def test_two_devices_work_at_the_same_time(run, recompute, side_effect, hold_meetings):
    pipe = make_pipe(attending_stack(side_effect), num_partitions=2, partition_by=[2, 4],
                     num_micro_batches=NUM_MICRO_BATCHES, recompute=recompute)
    meetings = hold_meetings(ahead={'F': 0, 'B': 1})
    run(pipe)
    assert meetings.num_met == {'F': 2 * (NUM_MICRO_BATCHES - 1), 'B': 2 * (NUM_MICRO_BATCHES - 1)}


def test_a_device_runs_one_action_at_a_time_in_schedule_order(hold_meetings):
    pipe = make_pipe(attending_stack(), num_partitions=2, partition_by=[2, 4], num_micro_batches=NUM_MICRO_BATCHES)
    meetings = hold_meetings(ahead={})
    pipe.value_and_grad(squared_error, X, Y)
    for stage in range(2):
        own = [(direction, event) for direction, other, event in meetings.actions if other == stage]
        assert own == [(direction, event) for direction in 'FB' for _ in range(NUM_MICRO_BATCHES)
                       for event in ('begins', 'ends')]
