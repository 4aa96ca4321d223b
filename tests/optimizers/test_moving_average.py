import keras
import numpy as np
import pytest
import tensorflow as tf

from lingpipe.optimizers import training_optimizer


def make_variable(value, device='CPU:0'):
    with tf.device(device):
        return keras.Variable(value)


@pytest.mark.parametrize('decay, first_step', [(0.999, 0), (0.2, 0), (0.9, 1000)])
def test_averages_follow_the_recurrence(decay, first_step):
    """decay(t) = min(decay, (1 + t) / (10 + t)), as in TensorFlow 1's ExponentialMovingAverage with num_updates."""
    variable = make_variable([1.0, -2.0])
    average = training_optimizer.MovingAverage({'weight': variable}, decay)
    expected = np.array([1.0, -2.0])
    update = tf.function(average.update)
    for step in range(first_step, first_step + 5):
        value = np.array([step**2, -step], np.float64)
        variable.assign(value)
        update(tf.constant(step, tf.int64))
        step_decay = min(decay, (1 + step) / (10 + step))
        expected = step_decay * expected + (1 - step_decay) * value
    np.testing.assert_allclose(average.averages['weight'], expected, rtol=1e-5)
    np.testing.assert_allclose(average.read(variable), expected, rtol=1e-5)


@pytest.mark.parametrize('dtype, first, second, average', [
    ('int32', 1, 5, 5), ('bool', False, True, True), ('float64', 1.0, 5.0, 4.6), ('bfloat16', 1.0, 5.0, 4.59375),
    ('complex64', 1j, 5j, 4.6j)])
def test_averages_keep_dtypes_and_copy_values_without_fractions(dtype, first, second, average):
    variable = keras.Variable(first, dtype=dtype)
    averages = training_optimizer.MovingAverage({'state': variable}, 0.9)
    variable.assign(second)
    averages.update(tf.constant(0, tf.int64))  # decay 1 / 10
    found = averages.read(variable)
    assert found.dtype == dtype
    np.testing.assert_allclose(complex(found.numpy()), average, rtol=1e-6)


def test_averages_live_beside_their_variables_under_their_names():
    variables = {'a/kernel': make_variable([1.0], 'CPU:2'), 'b/kernel': make_variable([2.0], 'CPU:5')}
    average = training_optimizer.MovingAverage(variables, 0.9)
    assert list(average.averages) == ['a/kernel', 'b/kernel']
    assert [value.device[-5:] for value in average.averages.values()] == ['CPU:2', 'CPU:5']
    assert not any(value.trainable for value in average.averages.values())
