import keras
import numpy as np
import pytest
import tensorflow as tf

from lingpipe.layers.keras_params import KerasParams
from lingpipe.models import base_task
from lingpipe.optimizers import training_optimizer

DEVICES = ['CPU:1', 'CPU:3', 'CPU:3']
VALUES = [np.arange(6, dtype=np.float32).reshape(2, 3), np.ones([4], np.float32), -np.ones([3, 3], np.float32)]
GRADIENTS = [np.sin(value + 1) for value in VALUES]


def make_variables(devices=DEVICES):
    variables = []
    for value, device in zip(VALUES, devices):
        with tf.device(device):
            variables.append(keras.Variable(value, name='weight'))
    return variables


def build(params, variables, **train):
    return training_optimizer.build_optimizer(
        base_task.train_params().Set(optimizer=params, **({'learning_rate': 0.1} | train)), variables)


def test_without_an_optimizer_it_is_gradient_descent():
    variables = make_variables()
    build(None, variables).apply([tf.constant(gradient) for gradient in GRADIENTS], variables)
    for variable, value, gradient in zip(variables, VALUES, GRADIENTS):
        np.testing.assert_allclose(variable.numpy(), value - 0.1 * gradient, rtol=1e-6)


SCHEDULE = KerasParams(keras.optimizers.schedules.PiecewiseConstantDecay, boundaries=[0], values=[1.0, 0.5])


def test_the_rate_may_follow_a_schedule():
    variables = make_variables()
    optimizer = build(None, variables, learning_rate=None, lr_schedule=SCHEDULE)
    for total in (1.0, 1.5, 2.0):
        optimizer.apply([tf.ones(value.shape) for value in VALUES], variables)
        np.testing.assert_allclose(variables[0].numpy(), VALUES[0] - total, rtol=1e-6)


@pytest.mark.parametrize('optimizer, train, expected', [
    (KerasParams(keras.optimizers.Adam, learning_rate=0.5), {'learning_rate': None}, 0.5),
    (KerasParams(keras.optimizers.Adam), {'learning_rate': None}, 0.001),
    (KerasParams(keras.optimizers.Adam, learning_rate=SCHEDULE), {'learning_rate': None}, 1.0),
    (KerasParams(keras.optimizers.Adam), {'learning_rate': 0.25}, 0.25)])
def test_the_one_rate_that_is_given_is_used(optimizer, train, expected):
    assert float(build(optimizer, make_variables(), **train).learning_rate) == pytest.approx(expected)


@pytest.mark.parametrize('optimizer, train, named', [
    (KerasParams(keras.optimizers.Adam, learning_rate=0.5), {}, 'learning_rate=0.1 and train.optimizer.learning_rate=0.5'),
    (None, {'lr_schedule': SCHEDULE}, 'train.learning_rate=0.1 and train.lr_schedule were'),
    (KerasParams(keras.optimizers.Adam, learning_rate=0.5), {'learning_rate': None, 'lr_schedule': SCHEDULE},
     'train.lr_schedule and train.optimizer.learning_rate=0.5')])
def test_rates_of_which_only_one_could_count_are_refused(optimizer, train, named):
    with pytest.raises(ValueError, match=named):
        build(optimizer, make_variables(), **train)


@pytest.mark.parametrize('option, value, instead', [
    ('clipnorm', 1.0, 'clip_gradient_norm_to_value'), ('clipvalue', 1.0, 'clip_gradient_norm_to_value'),
    ('global_clipnorm', 1.0, 'clip_gradient_norm_to_value'), ('use_ema', True, 'ema_decay'),
    ('gradient_accumulation_steps', 2, 'num_micro_batches')])
def test_options_that_the_params_of_training_have_are_refused(option, value, instead):
    with pytest.raises(ValueError, match=f'optimizer.{option}={value}.*{instead}'):
        build(KerasParams(keras.optimizers.SGD, **{option: value}), make_variables())


@pytest.mark.parametrize('field, value', [('optimizer', 'adam'), ('lr_schedule', 'cosine'), ('lr_schedule', 0.1)])
def test_what_is_no_params_is_refused(field, value):
    train = base_task.train_params().Set(**{field: value})
    with pytest.raises(ValueError, match=f'train.{field}={value!r} is not possible: it must be Params or None. Set it'):
        training_optimizer.make_optimizer(train)


@pytest.mark.parametrize('optimizer, ema_decay, num_slots', [
    (None, 0.0, 0),
    (KerasParams(keras.optimizers.SGD, momentum=0.9), 0.0, 1),
    (KerasParams(keras.optimizers.RMSprop), 0.0, 1),
    (KerasParams(keras.optimizers.RMSprop, momentum=0.9, centered=True), 0.0, 3),
    (KerasParams(keras.optimizers.Adam), 0.0, 2),
    (KerasParams(keras.optimizers.Adam), 0.99, 3)])
def test_tensors_of_the_size_of_a_weight_are_counted(optimizer, ema_decay, num_slots):
    p = base_task.train_params().Set(optimizer=optimizer, ema_decay=ema_decay)
    assert training_optimizer.num_slots(p) == num_slots
