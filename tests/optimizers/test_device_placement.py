import keras
import numpy as np
import pytest
import tensorflow as tf

from lingpipe.optimizers import device_placement

DEVICES = ['CPU:1', 'CPU:3', 'CPU:3']
VALUES = [np.arange(6, dtype=np.float32).reshape(2, 3), np.ones([4], np.float32), -np.ones([3, 3], np.float32)]
STEPS = [[3 * np.sin(value + step) for value in VALUES] for step in range(4)]

OPTIMIZERS = {
    'sgd': lambda **options: keras.optimizers.SGD(0.1, momentum=0.9, **options),
    'adamw': lambda **options: keras.optimizers.AdamW(0.1, weight_decay=0.1, **options),
    'nadam': lambda **options: keras.optimizers.Nadam(0.1, **options)}  # counts steps in a variable of its own
OPTIONS = {
    'plain': {}, 'clipnorm': {'clipnorm': 1.5}, 'clipvalue': {'clipvalue': 0.5}, 'small_global_norm': {'global_clipnorm': 2.0},
    'large_global_norm': {'global_clipnorm': 1e3}, 'average': {'use_ema': True, 'ema_momentum': 0.9},
    'average_overwrites': {'use_ema': True, 'ema_momentum': 0.5, 'ema_overwrite_frequency': 2},
    'accumulation': {'gradient_accumulation_steps': 2, 'global_clipnorm': 1.0}}


def make_variables(devices):
    variables = []
    for value, device in zip(VALUES, devices):
        with tf.device(device):
            variables.append(keras.Variable(value, name='weight'))
    variables[1].constraint = keras.constraints.NonNeg()
    return variables


def train(optimizer, variables):
    optimizer.build(variables)

    @tf.function
    def step(*gradients):
        optimizer.apply(gradients, variables)

    for gradients in STEPS:
        step(*map(tf.constant, gradients))
    return [variable.numpy() for variable in variables + optimizer.variables]


@pytest.mark.parametrize('kind, option', [
    *[('adamw', option) for option in OPTIONS],
    *[('sgd', option) for option in ('plain', 'average_overwrites', 'accumulation')],
    *[('nadam', option) for option in ('plain', 'clipnorm', 'average')]])
def test_placing_changes_no_result(kind, option):
    make, options = OPTIMIZERS[kind], OPTIONS[option]
    expected = train(make(**options), make_variables(['CPU:0'] * 3))
    actual = train(device_placement.place(make(**options)), make_variables(DEVICES))
    for one, other in zip(actual, expected):
        np.testing.assert_allclose(one, other, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize('option', ['plain', 'clipnorm', 'clipvalue', 'small_global_norm', 'average'])
def test_every_array_is_made_on_the_device_of_its_variable(option):
    variables = make_variables(DEVICES)
    optimizer = device_placement.place(OPTIMIZERS['adamw'](**OPTIONS[option]))
    optimizer.build(variables)
    homes = {tuple(variable.shape): device for variable, device in zip(variables, DEVICES)}
    assert all(slot.value.device.endswith(homes[tuple(slot.shape)]) for slot in optimizer.variables if len(slot.shape))
    step = tf.function(lambda *gradients: optimizer.apply(gradients, variables), autograph=False)
    graph = step.get_concrete_function(*[tf.TensorSpec(value.shape) for value in VALUES]).graph
    made = [tensor for operation in graph.get_operations() if operation.type not in ('Placeholder', 'ReadVariableOp')
            for tensor in operation.outputs if tensor.dtype == tf.float32 and tuple(tensor.shape) in homes]
    assert all(tensor.device.endswith(homes[tuple(tensor.shape)]) for tensor in made), [
        (tensor.name, tensor.device) for tensor in made]


def test_placing_twice_is_placing_once():
    optimizer = device_placement.place(keras.optimizers.SGD(0.1))
    update = optimizer._distributed_tf_update_step
    assert device_placement.place(optimizer)._distributed_tf_update_step is update


def test_a_constant_scale_of_the_loss_is_refused():
    with pytest.raises(ValueError, match='loss_scale_factor=8.0.*LossScaleOptimizer'):
        device_placement.place(keras.optimizers.SGD(loss_scale_factor=8.0))
