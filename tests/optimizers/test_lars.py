import keras
import numpy as np
import pytest
import tensorflow as tf

from lingpipe import optimizers
from lingpipe.optimizers import optimizer_parts
from tests import needs

PATHS = ['kernel', 'batch_normalization/gamma', 'bias']
VALUES = [np.linspace(-1, 2, 6).reshape(1, 1, 2, 3), np.linspace(0.5, 1.5, 3), np.linspace(-1, 1, 3)]
GRADIENTS = [[np.sin(3 * value + step) for value in VALUES] for step in range(4)]
RATES = [0.5, 1.0, 2.0, 0.25]


def variables_of(values, paths, devices=None):
    variables = []
    for index, (value, path) in enumerate(zip(values, paths)):
        *scopes, name = path.split('/')
        with keras.name_scope('/'.join(scopes) or 'layer'), tf.device((devices or ['CPU:0'] * len(paths))[index]):
            variables.append(keras.Variable(np.asarray(value, np.float32), name=name))
    return variables


def schedule():
    return keras.optimizers.schedules.PiecewiseConstantDecay([0, 1, 2], RATES)


def by_hand(values, gradients, rates, momentum=0.9, decay=1e-4, eeta=0.001, epsilon=0.0, nesterov=False, skips=()):
    """Return all values after steps of LARS in float64, written down from arXiv 1708.03888 and TensorFlow's own
    momentum."""
    values = [np.array(value, np.float64) for value in values]
    velocities = [np.zeros_like(value) for value in values]
    for rate, row in zip(rates, gradients):
        for index, g in enumerate(row):
            w, a = values[index], rate
            if index not in skips:
                lengths = np.sqrt(np.sum(w**2)), np.sqrt(np.sum(g**2))
                if min(lengths) > 0:
                    a = rate * eeta * lengths[0] / (lengths[1] + decay * lengths[0] + epsilon)
                g = g + decay * w
            velocities[index] = momentum * velocities[index] + a * g
            values[index] = w - (momentum * velocities[index] + a * g if nesterov else velocities[index])
    return values


def trained(optimizer, variables, gradients):
    optimizer.build(variables)
    step = tf.function(lambda *row: optimizer.apply(row, variables), autograph=False)
    for row in gradients:
        step(*[tf.constant(gradient, tf.float32) for gradient in row])
    return [variable.numpy() for variable in variables]


def assert_near(actual, expected, rtol=2e-5):
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=1e-6)


def test_two_steps_on_ones_have_the_published_values():
    (variable,) = variables_of([np.ones([3, 3])], ['kernel'])
    optimizer = optimizers.LARS(0.1, momentum=0.9, weight_decay=0.1, eeta=0.1, epsilon=1e-5)
    for velocity, weight in [(0.0099999696971, 0.9900000303029), (0.0188999430032, 0.9711000872998)]:
        optimizer.apply([tf.ones([3, 3])], [variable])
        (slot,) = [slot for slot in optimizer.variables if slot.shape == (3, 3)]
        np.testing.assert_allclose(slot.numpy(), np.full([3, 3], velocity), rtol=1e-6)
        np.testing.assert_allclose(variable.numpy(), np.full([3, 3], weight), rtol=1e-7)


@pytest.mark.parametrize(
    'fields', [{}, {'nesterov': True}, {'decay': 0.1, 'eeta': 0.1, 'epsilon': 0.5, 'momentum': 0.5}])
def test_steps_with_a_schedule_are_those_by_hand(fields):
    arguments = {{'decay': 'weight_decay'}.get(name, name): value for name, value in fields.items()}
    actual = trained(optimizers.LARS(schedule(), **arguments), variables_of(VALUES, PATHS), GRADIENTS)
    assert_near(actual, by_hand(VALUES, GRADIENTS, RATES, skips=(1, 2), **fields))


@pytest.mark.parametrize(
    'skip_list, skips', [(('batch_norm', 'evonorm', 'bias'), (1, 2)), ((), ()), (['kernel'], (0,))])
def test_variables_whose_path_has_a_text_of_the_list_get_plain_momentum(skip_list, skips):
    actual = trained(optimizers.LARS(schedule(), skip_list=skip_list), variables_of(VALUES, PATHS), GRADIENTS)
    assert_near(actual, by_hand(VALUES, GRADIENTS, RATES, skips=skips))


def test_where_a_norm_is_zero_the_rate_is_not_scaled():
    values, gradients = [np.zeros([2]), np.ones([2]), np.zeros([2])], [[np.ones([2]), np.zeros([2]), np.zeros([2])]]
    actual = trained(optimizers.LARS(0.1, weight_decay=0.5), variables_of(values, ['a', 'b', 'c']), gradients)
    assert_near(actual, [[-0.1, -0.1], [0.95, 0.95], [0.0, 0.0]])


def test_sparse_gradients_get_plain_momentum():
    table, gradient = np.ones([4, 2]), tf.IndexedSlices(tf.ones([3, 2]), tf.constant([1, 3, 1]), tf.constant([4, 2]))
    (ours,), (stock,) = variables_of([table], ['table']), variables_of([table], ['table'])
    optimizer, momentum = optimizers.LARS(0.1), keras.optimizers.SGD(0.1, momentum=0.9)
    for _ in range(2):
        optimizer.apply([gradient], [ours])
        momentum.apply([tf.convert_to_tensor(gradient)], [stock])
    assert_near([ours.numpy()], [stock.numpy()])


def test_variables_excluded_from_weight_decay_keep_their_trust_ratio():
    optimizer = optimizers.LARS(1.0, weight_decay=0.1, eeta=0.1, skip_list=())
    optimizer.exclude_from_weight_decay(var_names=['bias'])
    actual = trained(optimizer, variables_of(VALUES, PATHS), GRADIENTS[:1])
    assert_near(actual[2:], by_hand(VALUES, GRADIENTS[:1], [1.0], eeta=0.1, decay=0.0)[2:])
    assert_near(actual[:2], by_hand(VALUES, GRADIENTS[:1], [1.0], eeta=0.1, decay=0.1)[:2])


def test_norms_of_sixteen_bit_variables_are_float32():
    variable = keras.Variable(np.full([300, 300], 300.0), dtype='float16',
                              name='kernel')  # its sum of squares is infinite there
    optimizers.LARS(1.0, weight_decay=0.0, eeta=0.01).apply([tf.ones([300, 300], tf.float16)], [variable])
    np.testing.assert_allclose(variable.numpy(), np.full([300, 300], 297.0), rtol=1e-3)


@needs.xla_on_cpus
def test_as_a_function_of_stacked_weights_each_is_scaled_by_its_own_norm():
    stages = [VALUES[0], 5 * VALUES[0] + 1]
    variables = variables_of(stages, ['a/kernel', 'b/kernel'])
    pure = optimizer_parts.PureOptimizer(optimizers.LARS(0.5, eeta=0.1), variables)
    gradients = [[np.sin(value), np.cos(value)] for value in stages]

    def update(given):
        return pure.update(variables[0], *given, tf.constant(0, tf.int64), tf.constant(0.5))

    stacked = [tf.stack([tf.constant(array, tf.float32) for array in row]) for row in (stages, *zip(*gradients))]
    values, slots = stacked[0], [tf.zeros_like(stacked[0])]
    step = tf.function(
        lambda *given: tf.vectorized_map(update, given, fallback_to_while_loop=False), jit_compile=True,
        autograph=False)
    for gradient in stacked[1:]:
        values, slots = step(values, gradient, slots)
    assert_near(values, by_hand(stages, zip(*gradients), [0.5, 0.5], eeta=0.1))


def test_one_text_is_no_list_of_texts():
    with pytest.raises(ValueError, match=r"skip_list='bias' is one text.*Write \['bias'\]"):
        optimizers.LARS(skip_list='bias')


@pytest.mark.parametrize('field, value', [('momentum', 1.0), ('weight_decay', -0.1), ('eeta', float('nan'))])
def test_numbers_out_of_range_are_named(field, value):
    with pytest.raises(ValueError, match=f'LARS: {field}={value} must be'):
        optimizers.LARS(**{field: value})
