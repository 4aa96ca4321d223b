import keras
import numpy as np
import pytest
import tensorflow as tf

from lingpipe.layers import amoebanet_cell

CONCATENATED_STATES = {('B', False): 4, ('D', False): 4, ('B', True): 2, ('D', True): 3}


@pytest.fixture(autouse=True)
def fixed_seed():
    keras.utils.set_random_seed(0)


def make_cell(input_shape, **fields):
    fields = {'filters': 8, 'drop_path_final_keep_prob': 1.0, **fields}
    cell = amoebanet_cell.AmoebaNetCell.Params().Set(name='cell', **fields).Instantiate()
    cell.build(input_shape)
    return cell


def random_images(shape, seed):
    return tf.constant(np.random.default_rng(seed).normal(size=shape), tf.float32)


@pytest.mark.parametrize('genotype, reduction', CONCATENATED_STATES)
@pytest.mark.parametrize('out_size, prev_size', [((5, 6), (5, 6)), ((4, 5), (7, 9)), ((1, 1), (2, 1))])
def test_cell_computes_the_shape_it_promises(genotype, reduction, out_size, prev_size):
    inputs = (random_images((2, *out_size, 10), 0), random_images((2, *prev_size, 6), 1))
    shapes = [tuple(x.shape) for x in inputs]
    cell = make_cell(shapes, genotype=genotype, reduction=reduction)
    new_out, new_prev = cell(inputs)
    height, width = [-(-size // 2) if reduction else size for size in out_size]
    assert new_out.shape == (2, height, width, 8 * CONCATENATED_STATES[genotype, reduction])
    assert new_prev is inputs[0]


def test_genotype_d_normal_cell_equals_the_table_written_out():
    out, prev = random_images((2, 6, 6, 12), 0), random_images((2, 6, 6, 10), 1)
    cell = make_cell([out.shape, prev.shape], genotype='D')
    weights = {variable.path.removeprefix('cell/'): variable.value for variable in cell.variables}

    def convolve(x, *names):
        for name in names:
            x = tf.nn.conv2d(tf.nn.relu(x), weights[f'{name}/kernel'], 1, 'SAME') / np.sqrt(1.001)
        return x

    def bottleneck(x, name):
        return convolve(x, *(f'{name}/{part}' for part in ('reduce', 'conv_1x7', 'conv_7x1', 'expand')))

    h0 = convolve(out, 'state_0/conv_1x1')
    h1 = convolve(prev, 'state_1/conv_1x1')
    h2 = convolve(h1, 'state_2_left/conv_1x1') + tf.nn.max_pool2d(h1, 3, 1, 'SAME')
    h3 = h1 + bottleneck(h0, 'state_3_right')
    h4 = convolve(h0, 'state_4_left/conv_1x1') + bottleneck(h0, 'state_4_right')
    h5 = tf.nn.max_pool2d(h2, 3, 1, 'SAME') + h2
    h6 = tf.nn.avg_pool2d(h1, 3, 1, 'SAME') + convolve(h5, 'state_6_right/conv_1x1')
    np.testing.assert_allclose(cell((out, prev))[0], tf.concat([h0, h3, h4, h6], -1), atol=1e-5)


def test_drop_path_spares_only_the_identity():
    out, prev = random_images((2, 6, 6, 12), 0), random_images((2, 6, 6, 8), 1)
    cell = make_cell([out.shape, prev.shape], genotype='D', drop_path_final_keep_prob=1e-9)
    outputs = cell((out, prev), training=True)[0]
    h0 = cell.input_operation(out, training=True)
    np.testing.assert_allclose(outputs, tf.concat([h0, prev, tf.zeros_like(prev), tf.zeros_like(prev)], -1), atol=1e-5)


def test_drop_path_scales_each_path_of_each_example():
    out, prev = random_images((64, 4, 4, 12), 0), random_images((64, 4, 4, 8), 1)
    cell = make_cell([out.shape, prev.shape], genotype='D', drop_path_final_keep_prob=0.5)
    h3 = cell((out, prev), training=True)[0][..., 8:16] - prev
    undropped = cell.operations[3](cell.input_operation(out, training=True), training=True)
    scale = np.sum(h3 * undropped, axis=(1, 2, 3)) / np.sum(undropped**2, axis=(1, 2, 3))
    np.testing.assert_allclose(h3, undropped * scale[:, None, None, None], atol=1e-4)
    np.testing.assert_allclose(np.unique(scale.round(3)), [0, 2])
