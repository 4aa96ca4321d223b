import keras
import numpy as np
import pytest
import tensorflow as tf

from lingpipe.layers import amoebanet, keras_params
from lingpipe.partition import layer_analysis
from tests import needs

layers = keras.layers


def count(function, *shapes):
    return layer_analysis.count_flops(tf.function(function).get_concrete_function(*map(tf.TensorSpec, shapes)).graph)


def count_layer(layer, *shapes):
    layer(*[tf.zeros(shape) for shape in shapes])
    return count(layer, *shapes)


IMAGES = [2, 9, 8, 4]
CONVOLUTION = {'use_bias': False, 'padding': 'same'}


@pytest.mark.parametrize('layer, shape, contractions, elementwise', [
    (layers.Dense(7, activation='relu'), [3, 5], 3 * 5 * 7, 2 * 3 * 7),  # bias and ReLU
    (layers.Conv2D(6, 3, **CONVOLUTION), IMAGES, 2 * 9 * 8 * 6 * 9 * 4, 0),
    (layers.Conv2D(6, 3, strides=2, **CONVOLUTION), IMAGES, 2 * 5 * 4 * 6 * 9 * 4, 0),
    (layers.Conv2D(6, 3, use_bias=False), IMAGES, 2 * 7 * 6 * 6 * 9 * 4, 0),
    (layers.Conv2D(6, 3, strides=2, use_bias=False), IMAGES, 2 * 4 * 3 * 6 * 9 * 4, 0),
    pytest.param(layers.Conv2D(6, 3, groups=2, **CONVOLUTION), IMAGES, 2 * 9 * 8 * 6 * 9 * 2, None, marks=needs.xla_on_cpus),
    (layers.Conv2DTranspose(6, 3, use_bias=False), IMAGES, 2 * 9 * 8 * 4 * 9 * 6, 0),
    (layers.Conv3D(6, 3, use_bias=False), [2, 5, 6, 7, 4], 2 * 3 * 4 * 5 * 6 * 27 * 4, 0),
    (layers.DepthwiseConv2D((3, 5), depth_multiplier=2, **CONVOLUTION), IMAGES, 2 * 9 * 8 * 4 * 2 * 15, 0),
    (layers.SeparableConv2D(6, 3, **CONVOLUTION), IMAGES, 2 * 9 * 8 * (4 * 9 + 4 * 6), None)])
def test_a_layer_takes_two_operations_a_weight_and_place(layer, shape, contractions, elementwise):
    found = count_layer(layer, shape)
    assert found.contractions == 2 * contractions and elementwise in (None, found.elementwise)
    assert found.total == found.contractions + found.elementwise


@pytest.mark.parametrize('layer, forward', [
    (layers.Conv2D(6, 3, strides=2, padding='same', use_bias=False), 2 * 5 * 4 * 6 * 9 * 4),
    (layers.DepthwiseConv2D(3, depth_multiplier=2, padding='same', use_bias=False), 2 * 9 * 8 * 8 * 9)])
def test_gradients_of_a_convolution_take_twice_as_much(layer, forward):
    layer.build([None, 9, 8, 4])

    def gradients(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x)
        return tape.gradient(y, [x, *layer.trainable_variables])

    assert count(gradients, [2, 9, 8, 4]).contractions == 2 * 3 * forward


@pytest.mark.parametrize('transpose_a', [False, True])
@pytest.mark.parametrize('transpose_b', [False, True])
def test_matrix_products_by_any_transposition(transpose_a, transpose_b):
    a, b = [5, 3] if transpose_a else [3, 5], [7, 5] if transpose_b else [5, 7]
    assert count(lambda a, b: tf.matmul(a, b, transpose_a, transpose_b), a, b) == (2 * 3 * 5 * 7, 0)
    assert count(lambda a, b: tf.matmul(a, b, transpose_a, transpose_b), [4, *a], [4, *b]) == (2 * 4 * 3 * 5 * 7, 0)


@pytest.mark.parametrize('equation, a, b, multiply_adds', [
    ('bij,bjk->bik', [2, 3, 4], [2, 4, 5], 2 * 3 * 4 * 5),
    ('abc,cd->abd', [2, 3, 4], [4, 5], 2 * 3 * 4 * 5),
    ('i,j->ij', [3], [4], 3 * 4),
    ('bi,bi->b', [2, 3], [2, 3], 2 * 3),
    ('...ij,jk->...ik', [2, 3, 4], [4, 5], 2 * 3 * 4 * 5),
    ('...i,i...->...', [6, 2, 3], [3, 2], 6 * 2 * 3),
    ('ij->i', [2, 3], None, 0)])
def test_einsum(equation, a, b, multiply_adds):
    shapes = [a] if b is None else [a, b]
    assert count(lambda *tensors: tf.einsum(equation, *tensors), *shapes).contractions == 2 * multiply_adds


def test_elementwise_operations_count_one_a_value_and_moving_data_is_free():
    def function(x):
        return tf.concat([tf.nn.relu(tf.transpose(tf.reshape(x, [6, 4]))), tf.exp(tf.ones([4, 6])) * 2.0], 0)

    assert count(function, [2, 3, 4]).contractions == 0
    assert count(lambda x: tf.transpose(tf.reshape(x, [6, 4])), [2, 3, 4]) == (0, 0)
    assert count(lambda x: tf.nn.relu(x) * 2.0 + 1.0, [2, 3, 4]) == (0, 3 * 24)


def test_functions_inside_count_and_loops_count_once():
    def loop(x):
        return tf.while_loop(lambda x, i: i < 10, lambda x, i: (tf.matmul(x, x), i + 1), (x, 0))[0]

    assert count(tf.function(lambda x: tf.matmul(x, x)), [4, 4]).contractions == 2 * 4**3
    assert count(loop, [4, 4]).contractions == 2 * 4**3


def analyse(layer_params, image_size):
    return layer_analysis.analyse_layers(layer_params, tf.TensorSpec([None, image_size, image_size, 3]))


@pytest.fixture(scope='module')
def amoebanet_analyses():
    return analyse(amoebanet.amoebanet_layers(num_cells=18, reduction_size=256, use_auxiliary_head=False), 224)


def test_multiply_adds_of_each_unit_of_amoebanet(amoebanet_analyses):
    """Published layout of AmoebaNet-D (18, 256) at 224 x 224: 14.19 billion multiply-adds an image."""
    billions = {unit.name: unit.flops.contractions / 2e9 for unit in amoebanet_analyses}
    expected = {'stem': 0.0106, 'stem_cell_0': 0.0789, 'stem_cell_1': 0.1437, 'cell_0': 0.411, 'cell_1': 0.578,
                'cell_2': 0.7065, 'reduction_0': 1.0372, 'cell_6': 0.5523, 'cell_7': 0.6551, 'cell_11': 0.7065,
                'reduction_1': 1.0372, 'cell_12': 0.5523, 'cell_13': 0.6551, 'cell_17': 0.7065, 'head': 0.0041}
    assert {name: billions[name] for name in expected} == pytest.approx(expected, abs=6e-5)
    assert sum(billions.values()) == pytest.approx(14.194, abs=6e-4)


def test_analysis_knows_parameters_and_shapes_without_allocating(amoebanet_analyses):
    assert sum(unit.num_parameters for unit in amoebanet_analyses) == 121_915_113
    assert amoebanet_analyses[2].outputs[0].shape == (1, 28, 28, 384)
    assert amoebanet_analyses[-1].outputs.shape == (1, 1001)
    stem = amoebanet_analyses[0]
    assert (stem.kind, stem.num_parameters) == ('AmoebaNetStem', 27 * 32 + 2 * 32)


def test_a_layer_in_place_of_its_params_is_named():
    with pytest.raises(ValueError, match=r"layers\[1\] is a layer, 'mine'.*Write KerasParams\(keras.layers.Flatten"):
        layer_analysis.named_layer_params([keras_params.KerasParams(layers.Dense, units=2), layers.Flatten(name='mine')])


def test_a_layer_that_cannot_take_its_input_is_named():
    stack = layer_analysis.named_layer_params([keras_params.KerasParams(layers.Conv2D, filters=2, kernel_size=3)])
    with pytest.raises(ValueError, match=r"Layer 'conv2_d_0', whose input is \(None, 4\)"):
        layer_analysis.analyse_layers(stack, tf.TensorSpec([8, 4]))


def test_outputs_and_gradients_are_those_of_the_layer_itself():
    keras.utils.set_random_seed(0)
    layer, inputs = keras.layers.Dense(3, activation='tanh'), tf.random.normal([4, 5])
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        expected = layer(inputs)
    given = tf.random.normal([4, 3])
    expected_gradients = tape.gradient(
        expected, [inputs, *[weight.value for weight in layer.trainable_variables]], given)
    values = [tf.convert_to_tensor(variable) for variable in layer.variables]
    outputs, gradients = layer_analysis.forward_and_backward(layer, inputs, values, lambda outputs: [given])
    np.testing.assert_allclose(outputs, expected, rtol=1e-6)
    for actual, wanted in zip(gradients, expected_gradients, strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=1e-6)


def test_given_values_stand_in_for_the_variables_and_no_variable_changes():
    layer = keras.layers.BatchNormalization()
    layer.build((None, 2))
    before = [variable.numpy() for variable in layer.variables]
    values = [tf.fill(variable.shape, 3.0) for variable in layer.variables]
    outputs = layer_analysis.forward(layer, tf.constant([[1.0, 2.0], [3.0, 4.0]]), values)
    np.testing.assert_allclose(outputs, [[0.0, 0.0], [6.0, 6.0]], atol=5e-3)  # gamma and beta are 3
    np.testing.assert_array_equal([variable.numpy() for variable in layer.variables], before)


def test_integers_have_no_gradient_and_frozen_weights_none():
    layer = keras.layers.Embedding(5, 2)
    layer.build((None, 3))
    inputs, values = tf.constant([[0, 1, 1]]), [tf.zeros([5, 2])]
    _, gradients = layer_analysis.forward_and_backward(layer, inputs, values, lambda outputs: [tf.ones([1, 3, 2])])
    np.testing.assert_array_equal(gradients[0][:, 0], [1, 2, 0, 0, 0])
    layer.trainable = False
    assert layer_analysis.forward_and_backward(layer, inputs, values, lambda outputs: [tf.ones([1, 3, 2])])[1] == []
