"""Devices work at the same time: seen from when actions begin and end, never from how long they take."""

import itertools
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from lingpipe.layers.keras_params import KerasParams

layers = keras.layers

NUM_MICRO_BATCHES = 6
X, Y = np.ones((12, 4), np.float32), np.ones((12, 4), np.float32)
STAMPS = []


class Slow(layers.Layer):
    """Passes its inputs on after a while, in both directions, and stamps when it began and ended."""

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
        def slow(x):
            return self._wait(x, 'F'), lambda upstream: self._wait(upstream, 'B')

        return slow(inputs)

    def _wait(self, x, kind):
        def wait(value):
            begin = time.monotonic()
            time.sleep(0.05)
            STAMPS.append((kind, self.stage, begin, time.monotonic()))
            return value

        waited = tf.numpy_function(wait, [x], x.dtype)
        waited.set_shape(x.shape)
        return waited


def squared_error(y_true, outputs):
    return tf.reduce_mean(tf.square(outputs - y_true), -1)


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


def intervals(kind, stage):
    """Returns (begin, end) of the actions of a stage, in the order in which they began."""
    found = sorted((begin, end) for one, other, begin, end in STAMPS if (one, other) == (kind, stage))
    assert len(found) == NUM_MICRO_BATCHES
    return found


def num_overlapping(ahead, behind):
    """In how many pairs the stage that is ahead already works on micro-batch m + 1 while the other still works on m."""
    return sum(begin < other_end and other_begin < end
               for (begin, end), (other_begin, other_end) in zip(ahead[1:], behind[:-1]))


@pytest.mark.parametrize('run, recompute, side_effect', [
    (value_and_grad, 'stage', 'none'), (value_and_grad, 'none', 'none'), (value_and_grad, 'stage', 'print'),
    (value_and_grad, 'stage', 'assert'), (value_and_grad, 'none', 'random'), (call_under_a_tape, 'stage', 'print'),
    (steps_in_a_loop, 'stage', 'print')])
def test_two_devices_work_at_the_same_time(run, recompute, side_effect, make_pipe):
    stack = [KerasParams(layers.Dense, units=4), KerasParams(Slow, stage=0, side_effect=side_effect),
             KerasParams(layers.Dense, units=4), KerasParams(Slow, stage=1, side_effect=side_effect)]
    pipe = make_pipe(stack, num_partitions=2, partition_by=[2, 4], num_micro_batches=NUM_MICRO_BATCHES, recompute=recompute)
    run(pipe)  # the first call of a function takes long
    STAMPS.clear()
    run(pipe)
    num_pairs = NUM_MICRO_BATCHES - 1
    assert num_overlapping(intervals('F', 0), intervals('F', 1)) > num_pairs / 2
    assert num_overlapping(intervals('B', 1), intervals('B', 0)) > num_pairs / 2


def test_one_device_runs_one_action_at_a_time_in_the_order_of_the_schedule(make_pipe):
    stack = [KerasParams(Slow, stage=0), KerasParams(layers.Dense, units=4), KerasParams(Slow, stage=1)]
    pipe = make_pipe(stack, num_partitions=2, partition_by=[1, 3], num_micro_batches=NUM_MICRO_BATCHES)
    pipe(X)
    STAMPS.clear()
    pipe.value_and_grad(squared_error, X, Y)
    for stage in range(2):
        forward = intervals('F', stage)
        own = sorted((begin, end) for _, other, begin, end in STAMPS if other == stage)
        assert own[:NUM_MICRO_BATCHES] == forward
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(own))
