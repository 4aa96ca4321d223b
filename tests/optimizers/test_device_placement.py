"""Every optimizer of Keras, placed over two devices, against itself on one."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from lingpipe.devices import variable_placement
from lingpipe.optimizers import device_placement, optimizer_parts

o = keras.optimizers
DEVICES = {'kernel': 'CPU:1', 'bias': 'CPU:3', 'table': 'CPU:3', 'unused': 'CPU:1'}
VALUES = {
    'kernel': np.arange(6).reshape(2, 3), 'bias': np.ones([4]), 'table': -np.ones([3, 5]), 'unused': np.ones([2, 2])}
STEPS = [
    [3 * np.sin(VALUES[name] + step).astype(np.float32) for name in ('kernel', 'bias', 'table')] for step in range(4)]
ACCUMULATES = {'gradient_accumulation_steps': 2, 'use_ema': True, 'ema_momentum': 0.5, 'ema_overwrite_frequency': 2}


def falling():
    return o.schedules.ExponentialDecay(0.1, 2, 0.5)


def adamw_of_all_but(variables=(), names=None, **options):
    optimizer = o.AdamW(0.1, weight_decay=0.5, **options)
    optimizer.exclude_from_weight_decay(list(variables), names)
    return optimizer


def by_rank(of_vectors, of_matrices):
    return lambda variable: of_matrices if len(variable.shape) == 2 else of_vectors


class ClipsItsWay(o.SGD):
    def _clip_gradients(self, grads):
        largest = tf.reduce_max([tf.reduce_max(tf.abs(gradient)) for gradient in grads])
        return [gradient / largest for gradient in grads]


class CentersGradients(o.SGD):
    """Changes gradients before clipping of Keras's, and warms its rate up."""

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        super()._backend_update_step([grad - tf.reduce_mean(grad) for grad in grads], trainable_variables, learning_rate)

    def _get_current_learning_rate(self):
        return super()._get_current_learning_rate() / (2.0 + tf.cast(self._iterations.value, tf.float32))


def replaced(optimizer):
    """Replace a method of the object itself."""
    apply = optimizer.apply
    optimizer.apply = lambda grads, variables=None: apply([None, *grads[1:]], variables)
    return optimizer


class MovesItsWay(o.SGD):
    """Overrides what Keras's guide tells to, and what it does not: reads counter and rate by itself, counts its
    steps."""

    def build(self, variables):
        super().build(variables)
        self.last = [keras.Variable(tf.zeros(variable.shape), name='last') for variable in variables]
        self.num_calls = keras.Variable(0.0, name='num_calls')

    def apply(self, grads, trainable_variables=None):
        super().apply([None if grad is None else grad - tf.reduce_mean(grad) for grad in grads], trainable_variables)

    def update_step(self, gradient, variable, learning_rate):
        last = self.last[self._get_variable_index(variable)]
        rate = self.learning_rate / tf.cast(self.iterations.value + 1, tf.float32)
        self.assign_sub(variable, rate * (gradient + last))
        self.assign(last, gradient)

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        self.num_calls.assign_add(1.0)
        super()._backend_update_step(grads, trainable_variables, learning_rate * self.num_calls)


OPTIMIZERS = {
    'sgd': lambda weights: o.SGD(0.1, momentum=0.9, nesterov=True, clipvalue=0.5, use_ema=True,
                                 ema_overwrite_frequency=2),
    'rmsprop': lambda weights: o.RMSprop(falling(), centered=True, momentum=0.9, clipnorm=1.5),
    'adam': lambda weights: o.Adam(0.1, amsgrad=True, global_clipnorm=2.0, use_ema=True, ema_momentum=0.9),
    'adamw': lambda weights: o.AdamW(falling(), weight_decay=0.1, global_clipnorm=1e3, **ACCUMULATES),
    'adamw_by_name': lambda weights: adamw_of_all_but(names=['tab', 'bias']),
    'adamw_by_variable': lambda weights: adamw_of_all_but(weights[:1], clipnorm=1.0),
    'adadelta': lambda weights: o.Adadelta(0.1, weight_decay=0.1),
    'adagrad': lambda weights: o.Adagrad(lambda: 0.1, clipvalue=1.0),
    'adamax': lambda weights: o.Adamax(0.1, **ACCUMULATES),
    'nadam': lambda weights: o.Nadam(0.1, clipnorm=1.5, gradient_accumulation_steps=2),
    'ftrl': lambda weights: o.Ftrl(0.1, l1_regularization_strength=0.1, weight_decay=0.1),
    'lion': lambda weights: o.Lion(0.1, weight_decay=0.1, global_clipnorm=1.0),
    'lamb': lambda weights: o.Lamb(falling(), weight_decay=0.1),
    'adafactor': lambda weights: o.Adafactor(0.1, weight_decay=0.1),
    'adafactor_accumulates': lambda weights: o.Adafactor(falling(), clipnorm=1.0, **ACCUMULATES),
    'muon': lambda weights: o.Muon(0.1, weight_decay=0.3, adam_weight_decay=0.5, exclude_layers=['table']),
    'muon_of_adam': lambda weights: o.Muon(0.1, weight_decay=None, adam_weight_decay=0.5, use_ema=True),
    'schedule_free': lambda weights: o.ScheduleFreeAdamW(0.1, weight_decay=0.1, warmup_steps=3),
    'several': lambda weights: o.MultiOptimizer(o.OptimizerMap(o.SGD(0.1), {'bias': o.Adam(0.1), 'kernel': o.Muon(0.1)})),
    'several_of_a_function': lambda weights: o.MultiOptimizer(by_rank(o.SGD(0.1), o.Adafactor(0.1, weight_decay=0.5))),
    'of_the_user': lambda weights: MovesItsWay(falling(), weight_decay=0.1),
    'centers_gradients': lambda weights: CentersGradients(0.1, weight_decay=0.5, clipvalue=0.02),
    'replaced': lambda weights: replaced(o.Adam(0.1)),
    'clips_its_way': lambda weights: ClipsItsWay(0.1)}


def make_variables(devices):
    variables = []
    for name, value in VALUES.items():
        with tf.device(devices[name]):
            variables.append(keras.Variable(value.astype(np.float32), name=name))
    variables[1].constraint = keras.constraints.NonNeg()
    return variables


def short_name(device):
    return device.rpartition('device:')[2]


def values_of(optimizer, variables):
    return [variable.numpy() for variable in [*variables, *optimizer.variables]]


def arrays_made(graph):
    """Pairs of each array that is made outside functions and the short name of where."""
    ignored = ('Placeholder', 'ReadVariableOp', 'Identity', 'Const')
    return [(tensor, short_name(operation.device)) for operation in graph.get_operations()
            if operation.type not in ignored for tensor in operation.outputs
            if tensor.dtype == tf.float32 and tensor.shape.rank]


@pytest.mark.filterwarnings('ignore:Gradients do not exist')
@pytest.mark.parametrize('kind', OPTIMIZERS)
def test_placing_changes_no_result_but_only_where_it_is_computed(kind):
    plain = make_variables(dict.fromkeys(VALUES, 'CPU:0'))
    stock = OPTIMIZERS[kind](plain)
    for gradients in STEPS:
        stock.apply_gradients(zip([*map(tf.constant, gradients), None], plain))

    variables = make_variables(DEVICES)
    optimizer = device_placement.place(OPTIMIZERS[kind](variables))
    optimizer.build(variables)
    step = tf.function(
        lambda *gradients: optimizer.apply_gradients(zip([*gradients, None], variables)), autograph=False)
    for gradients in STEPS:
        step(*map(tf.constant, gradients))

    for value, expected in zip(values_of(optimizer, variables), values_of(stock, plain), strict=True):
        np.testing.assert_allclose(value, expected, rtol=2e-5, atol=1e-6)
    for part in optimizer_parts.parts_of(optimizer):
        pairs = optimizer_parts._slots(part)
        assert all(slot.value.device == weight.value.device for slot, weight in pairs)
        assert {id(slot) for slot, _ in pairs} >= {id(slot) for slot in part.variables if len(slot.shape)}
    if optimizer_parts.parts_of(optimizer) == [optimizer] and not optimizer_parts.works_on_all_weights(optimizer):
        homes = {(2, 3): 'CPU:1', (3, 5): 'CPU:3'}  # Keras applies the constraint of the bias where it likes
        graph = step.get_concrete_function(*map(tf.constant, STEPS[0])).graph
        assert not [(tensor.name, where) for tensor, where in arrays_made(graph)
                    if where != homes.get(tuple(tensor.shape), where)]


@pytest.mark.parametrize('option', [
    {'global_clipnorm': 1.0}, {'clipnorm': 1.0}, {'clipvalue': 1.0}, {'gradient_accumulation_steps': 2}], ids=str)
@pytest.mark.parametrize('kind', [o.SGD, o.Adam, o.Adagrad, o.RMSprop])
def test_rows_that_are_looked_up_twice_count_as_in_keras(kind, option):
    rows = tf.IndexedSlices(tf.reshape(tf.range(15.0), [3, 5]), tf.constant([1, 1, 2]), tf.constant([3, 5]))
    results = []
    for place in (lambda optimizer: optimizer, device_placement.place):
        variables = make_variables(DEVICES)
        optimizer = place(kind(0.1, **option))
        for _ in range(2):
            optimizer.apply([rows, tf.ones([4])], [variables[2], variables[1]])
        results.append(values_of(optimizer, variables))
    for placed, plain in zip(*results, strict=True):
        np.testing.assert_allclose(placed, plain, rtol=1e-5)


def test_slots_move_with_their_weights():
    variables = make_variables(DEVICES)
    optimizer = o.Adam(0.1)
    gradients = [tf.ones(value.shape) for value in VALUES.values()]
    optimizer.apply(gradients, variables)
    before = values_of(optimizer, variables)
    for variable in variables:
        variable_placement.move(variable, 'CPU:5')
    device_placement.place(optimizer)
    assert {short_name(variable.value.device) for variable in [*variables, *optimizer.variables[2:]]} == {'CPU:5'}
    np.testing.assert_equal(values_of(optimizer, variables), before)
    optimizer.apply(gradients, variables)
    assert optimizer.iterations == 2


def test_placing_again_follows_changed_attributes():
    variables = make_variables(DEVICES)
    optimizer = o.SGD(0.5)
    for decay in (0.5, 0.25):
        before, optimizer.weight_decay = variables[0].numpy(), decay
        device_placement.place(optimizer).apply([tf.zeros(value.shape) for value in VALUES.values()], variables)
        np.testing.assert_allclose(variables[0].numpy(), before * (1 - 0.5 * decay))


class ScalesItsWay(o.SGD):
    def scale_loss(self, loss):
        return 2.0 * loss


@pytest.mark.parametrize('optimizer', [o.SGD(loss_scale_factor=8.0), ScalesItsWay()])
def test_what_scales_the_loss_its_own_way_is_refused(optimizer):
    with pytest.raises(ValueError, match='scale_loss or has loss_scale_factor=.*Leave it out.*LossScaleOptimizer'):
        device_placement.place(optimizer)


def test_weight_by_weight_some_optimizers_are_refused():
    variables = make_variables(DEVICES)
    numbers = tf.constant(0.1), tf.constant(0, tf.int64)
    optimizer = device_placement.place(o.SGD(0.1, weight_decay=0.5))
    optimizer.build(variables)
    with pytest.warns(UserWarning, match="Gradients do not exist for variables .'kernel', 'table', 'unused'"):
        device_placement.of(optimizer).apply_values([None, tf.zeros([4]), None, None], variables, *numbers)
    for variable, factor in zip(variables, (1.0, 0.95, 1.0, 1.0)):
        np.testing.assert_allclose(variable.numpy(), factor * VALUES[variable.name], rtol=1e-6)
    for kind, method in ((o.Nadam, '_backend_update_step'), (MovesItsWay, 'apply')):
        optimizer = device_placement.place(kind(0.1))
        optimizer.build(variables)
        with pytest.raises(ValueError, match=f'{kind.__name__} defines {method}, which works on all weights at '
                                             'once.*Choose another'):
            device_placement.of(optimizer).apply_values([tf.zeros([2, 3])], variables[:1], *numbers)
