import keras
import numpy as np
import pytest
import tensorflow as tf

from lingpipe.layers import amoebanet_operations, base_layer

EPSILON = 1e-3


def make_operation(operation, shape, **fields):
    layer = amoebanet_operations.Operation.Params().Set(name='operation', operation=operation, **fields).Instantiate()
    layer.build(shape)
    return layer


def random_images(shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype('float32')


def weights_by_path(layer):
    return {variable.path.split('/', 1)[-1]: variable.numpy() for variable in layer.variables}


def relu_convolution_batch_norm(x, kernel, strides=(1, 1), relu=True):
    """Loop over the output pixels; fresh batch norm only divides by sqrt(1 + epsilon)."""
    x = np.maximum(x, 0) if relu else x
    batch, *sizes, _ = x.shape
    new_sizes = [-(-size // stride) for size, stride in zip(sizes, strides)]
    padding = [max((new - 1) * stride + extent - size, 0) for new, stride, extent, size in
               zip(new_sizes, strides, kernel.shape, sizes)]
    x = np.pad(x, [(0, 0)] + [(total // 2, total - total // 2) for total in padding] + [(0, 0)])
    outputs = np.zeros((batch, *new_sizes, kernel.shape[-1]))
    for row in range(new_sizes[0]):
        for column in range(new_sizes[1]):
            top, left = row * strides[0], column * strides[1]
            window = x[:, top:top + kernel.shape[0], left:left + kernel.shape[1]]
            outputs[:, row, column] = np.einsum('bhwi,hwio->bo', window, kernel)
    return outputs / np.sqrt(1 + EPSILON)


def depthwise_as_full(kernel):
    return kernel * np.eye(kernel.shape[2])


@pytest.mark.parametrize('operation, middle', [
    ('1x7_7x1', {'conv_1x7': (1, 2), 'conv_7x1': (2, 1)}), ('1x7_7x1', {'conv_1x7': (1, 1), 'conv_7x1': (1, 1)}),
    ('3x3', {'conv_3x3': (2, 2)})])
@pytest.mark.parametrize('size', [7, 8])
def test_a_bottleneck_strides_once_in_each_direction(size, operation, middle):
    x = random_images((2, size, size, 6))
    layer = make_operation(operation, x.shape, filters=8, strides=max(map(max, middle.values())))
    weights = weights_by_path(layer)
    expected = x
    for name, strides in {'reduce': (1, 1), **middle, 'expand': (1, 1)}.items():
        expected = relu_convolution_batch_norm(expected, weights[f'{name}/kernel'], strides)
    np.testing.assert_allclose(layer(x), expected, atol=1e-5)
    assert weights['reduce/kernel'].shape[-1] == 8 // 4


def test_separable_is_applied_twice_and_strides_once():
    x = random_images((2, 7, 6, 5))
    layer = make_operation('separable_5x5_2', x.shape, filters=4, strides=2)
    weights = weights_by_path(layer)
    expected = x
    for name, strides in (('separable_0', (2, 2)), ('separable_1', (1, 1))):
        depthwise = depthwise_as_full(weights[f'{name}/depthwise_kernel'])
        kernel = np.einsum('hwim,mo->hwio', depthwise, weights[f'{name}/pointwise_kernel'][0, 0])
        expected = relu_convolution_batch_norm(expected, kernel, strides)
    np.testing.assert_allclose(layer(x), expected, atol=1e-5)


def test_average_pool_excludes_the_padding():
    x = np.arange(1.0, 10.0).reshape((1, 3, 3, 1)).astype('float32')
    outputs = make_operation('avg_pool_3x3', x.shape, filters=1)(x)
    np.testing.assert_allclose(np.squeeze(outputs), [[3, 3.5, 4], [4.5, 5, 5.5], [6, 6.5, 7]])


@pytest.mark.parametrize('strides, expected', [(1, [[5, 6, 6], [8, 9, 9], [8, 9, 9]]), (2, [[5, 6], [8, 9]])])
def test_max_pool_2x2_pads_at_the_end(strides, expected):
    x = np.arange(1.0, 10.0).reshape((1, 3, 3, 1)).astype('float32')
    outputs = make_operation('max_pool_2x2', x.shape, filters=1, strides=strides)(x)
    np.testing.assert_allclose(np.squeeze(outputs), expected)


def test_pool_projects_differing_channels_without_relu():
    x = -1 - np.abs(random_images((2, 3, 3, 5)))
    layer = make_operation('max_pool_3x3', x.shape, filters=4)
    pooled = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-np.inf)
    pooled = np.lib.stride_tricks.sliding_window_view(pooled, (3, 3), axis=(1, 2)).max(axis=(-2, -1))
    expected = relu_convolution_batch_norm(pooled, weights_by_path(layer)['projection/kernel'], relu=False)
    np.testing.assert_allclose(layer(x), expected, atol=1e-5)


def test_none_is_the_identity_unless_shapes_require_a_convolution():
    x = random_images((2, 5, 5, 4))
    np.testing.assert_array_equal(make_operation('none', x.shape, filters=4)(x), x)
    for fields in ({'filters': 4, 'strides': 2}, {'filters': 6}):
        layer = make_operation('none', x.shape, **fields)
        strides = (fields.get('strides', 1),) * 2
        expected = relu_convolution_batch_norm(x, weights_by_path(layer)['conv_1x1/kernel'], strides)
        np.testing.assert_allclose(layer(x), expected, atol=1e-5)


@pytest.mark.parametrize('size', [(4, 4), (5, 5), (5, 4), (1, 1)])
@pytest.mark.parametrize('relu', [False, True])
def test_factorized_reduction_sees_every_pixel_once(size, relu):
    x = random_images((2, *size, 3))
    layer = amoebanet_operations.FactorizedReduction.Params().Set(name='reduction', filters=5, relu=relu).Instantiate()
    layer.build(x.shape)
    weights = weights_by_path(layer)
    even, odd = weights['even/kernel'][0, 0], weights['odd/kernel'][0, 0]
    rectified = np.maximum(x, 0) if relu else x
    shifted = np.pad(rectified, ((0, 0), (0, 1), (0, 1), (0, 0)))[:, 1:, 1:]
    expected = np.concatenate([rectified[:, ::2, ::2] @ even, shifted[:, ::2, ::2] @ odd], axis=-1)
    outputs = layer(x)
    np.testing.assert_allclose(outputs, expected / np.sqrt(1 + EPSILON), atol=1e-5)
    assert outputs.shape == layer.compute_output_shape(x.shape)
    assert (even.shape, odd.shape) == ((3, 2), (3, 3))


@pytest.fixture(autouse=True)
def fixed_seed():
    keras.utils.set_random_seed(0)


def make_drop_path(final_keep_prob, num_training_steps=None):
    layer = amoebanet_operations.DropPath(final_keep_prob, num_training_steps)
    layer.build((None, 2, 2, 3))
    return layer


def test_drop_path_drops_whole_examples_and_keeps_the_expected_value():
    inputs = np.random.default_rng(0).normal(1.0, 0.1, (4000, 2, 2, 3)).astype('float32')
    scales, = make_drop_path(final_keep_prob=0.7).draw_scales(inputs, num_paths=1)
    outputs = (inputs * scales).numpy()
    kept = np.any(outputs != 0, axis=(1, 2, 3))
    np.testing.assert_allclose(outputs[kept], inputs[kept] / 0.7, rtol=1e-6)
    assert np.all(outputs[~kept] == 0)
    assert kept.mean() == pytest.approx(0.7, abs=4 * np.sqrt(0.7 * 0.3 / 4000))
    assert outputs.mean() == pytest.approx(inputs.mean(), rel=0.05)


@pytest.mark.parametrize('step, keep_prob', [(0, 1.0), (500, 0.85), (1000, 0.7), (2000, 0.7)])
@pytest.mark.parametrize('as_step', [int, lambda step: tf.constant(step, tf.int64)])
def test_keep_prob_falls_linearly_to_its_final_value(step, keep_prob, as_step):
    layer = make_drop_path(final_keep_prob=0.7, num_training_steps=1000)
    with base_layer.training_step(as_step(step)):
        assert float(layer.keep_prob()) == pytest.approx(keep_prob)


@pytest.mark.parametrize('final_keep_prob, training', [(0.5, False), (1.0, True)])
def test_nothing_is_dropped_without_training_or_chance(final_keep_prob, training):
    assert not make_drop_path(final_keep_prob=final_keep_prob).is_active(training)
