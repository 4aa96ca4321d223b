import keras
import numpy as np
import pytest
import tensorflow as tf

from lingpipe.layers import amoebanet, base_layer
from tests.layers import stacks


@pytest.fixture(autouse=True)
def fixed_seed():
    keras.utils.set_random_seed(0)


def run(layers, x, training):
    for layer in layers:
        x = layer(x, training=training)
    return x


@pytest.mark.parametrize('genotype, num_cells, reduction_size, num_parameters', [
    ('D', 18, 208, 81_140_766), ('D', 72, 512, 1_842_618_441), ('B', 18, 512, 557_286_057)])
def test_parameter_count_of_published_networks(genotype, num_cells, reduction_size, num_parameters):
    layers, _ = stacks.unallocated(amoebanet.amoebanet_layers(
        genotype, num_cells=num_cells, reduction_size=reduction_size, use_auxiliary_head=False))
    assert stacks.count(layers) == num_parameters


def test_output_shapes_of_each_unit_of_d_18_256():
    _, shapes = stacks.unallocated(amoebanet.amoebanet_layers(use_auxiliary_head=False))
    units = ([(32, 111), (192, 56), (384, 28)] + [(1024, 28)] * 6 + [(1536, 14)] + [(2048, 14)] * 6 + [(3072, 7)]
             + [(4096, 7)] * 6)
    expected = [(None, size, size, channels) for channels, size in units]
    assert shapes[0] == expected[0]
    assert [shape[0] for shape in shapes[1:-1]] == expected[1:]
    assert [shape[1] for shape in shapes[1:-1]] == expected[:-1]
    assert shapes[-1] == (None, 1001)


@pytest.mark.parametrize('num_cells, names', [
    (2, 'reduction_0 cell_0 auxiliary_head reduction_1 cell_1'),
    (4, 'cell_0 reduction_0 cell_1 auxiliary_head reduction_1 cell_2 cell_3'),
    (6, 'cell_0 cell_1 reduction_0 cell_2 cell_3 auxiliary_head reduction_1 cell_4 cell_5')])
def test_units_come_in_the_published_order(num_cells, names):
    layers = amoebanet.amoebanet_layers(num_cells=num_cells)
    assert [layer.name for layer in layers] == ['stem', 'stem_cell_0', 'stem_cell_1', *names.split(), 'head']


@pytest.mark.parametrize('genotype', [pytest.param('B', marks=pytest.mark.slow), 'D'])
def test_every_weight_has_a_finite_gradient_and_evaluation_has_one_head(genotype):
    images = tf.random.stateless_normal((4, 35, 32, 1), seed=(1, 2))
    layers, shapes = stacks.built(amoebanet.amoebanet_layers(
        genotype, num_cells=2, reduction_size=8, num_classes=5, drop_path_final_keep_prob=0.9,
        drop_path_num_steps=10), (None, *images.shape[1:]))
    assert shapes[-1] == (None, 5)
    with base_layer.training_step(5), tf.GradientTape() as tape:
        logits, auxiliary_logits = run(layers, images, training=True)
        loss = tf.reduce_mean(logits**2) + 0.4 * tf.reduce_mean(auxiliary_logits**2)
    gradients = tape.gradient(loss, [weight.value for weight in stacks.weights_of(layers)])
    assert all(gradient is not None and np.all(np.isfinite(gradient)) for gradient in gradients)
    assert logits.shape == auxiliary_logits.shape == run(layers, images, training=False).shape == (4, 5)


@pytest.mark.parametrize('size, full_kernel', [(14, 4), (5, 1), (2, 1)])
def test_auxiliary_head_shrinks_its_window_to_the_feature_map(size, full_kernel):
    layer = amoebanet.AmoebaNetAuxiliaryHead.Params().Set(name='auxiliary_head', num_classes=5).Instantiate()
    pair = tf.ones((2, size, size, 8)), tf.ones((2, size, size, 4))
    layer.build([x.shape for x in pair])
    out, prev, logits = layer(pair, training=True)
    assert out is pair[0]
    assert prev is pair[1]
    assert logits.shape == (2, 5)
    kernels = [convolution.kernel.shape for convolution, _ in layer.convolutions]
    assert kernels == [(1, 1, 8, 51), (full_kernel, full_kernel, 51, 307)]


def test_mixed_precision_gives_float32_logits():
    layers, _ = stacks.built([params.Set(dtype_policy='mixed_bfloat16') for params in amoebanet.amoebanet_layers(
        num_cells=2, reduction_size=8, num_classes=5)], (None, 32, 32, 1))
    outputs = run(layers, tf.random.stateless_normal((4, 32, 32, 1), seed=(1, 2)), training=True)
    assert [x.dtype for x in outputs] == [tf.float32, tf.float32]
    assert all(variable.dtype == 'float32' for variable in stacks.weights_of(layers))
    assert {sub.compute_dtype for layer in layers for sub in layer._flatten_layers()} == {'bfloat16'}


@pytest.mark.parametrize('fields, message', [
    ({'num_cells': 1}, 'num_cells is 1; it must be at least 2'),
    ({'reduction_size': 4}, 'reduction_size is 4; it must be at least 8')])
def test_too_small_networks_are_rejected(fields, message):
    with pytest.raises(ValueError, match=message):
        amoebanet.amoebanet_layers(**fields)
