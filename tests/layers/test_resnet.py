import numpy as np
import pytest
import tensorflow as tf

from lingpipe import optimizers
from lingpipe.layers import resnet
from lingpipe.partition import layer_analysis
from tests.layers import stacks


# The counts that torchvision prints for its models of these names.
@pytest.mark.parametrize('depth, num_parameters', [
    (18, 11_689_512), (34, 21_797_672), (50, 25_557_032), (101, 44_549_160), (152, 60_192_808)])
def test_parameter_counts_are_the_published_ones(depth, num_parameters):
    layers, shapes = stacks.unallocated(resnet.resnet_layers(depth))
    assert stacks.count(layers) == num_parameters
    assert shapes[-1] == (None, 1000)


def test_it_is_version_one_and_a_half_by_its_number_of_multiply_adds():
    described = layer_analysis.analyse_layers(resnet.resnet_layers(50), tf.TensorSpec([1, 224, 224, 3]))
    flops = sum(layer.flops.contractions for layer in described)
    assert flops / 2 == 4_089_184_256  # of torchvision's resnet50; version 1, strides in the 1x1, has 3.86e9


@pytest.mark.parametrize('bottleneck', [True, False])
def test_a_new_block_passes_what_is_positive_through(bottleneck):
    block = resnet.ResNetBlock.Params().Set(name='block', filters=4, bottleneck=bottleneck).Instantiate()
    x = tf.random.stateless_normal((2, 6, 6, 16 if bottleneck else 4), seed=(1, 2))
    block.build(x.shape)
    assert block.shortcut is None
    np.testing.assert_array_equal(block(x, training=True), tf.nn.relu(x))


def test_only_the_last_scale_of_each_block_starts_at_zero():
    layers, _ = stacks.built(resnet.resnet_layers(50, filters=4, num_classes=5), (None, 32, 32, 3))
    gammas = {variable.path: np.unique(variable.numpy()) for variable in stacks.weights_of(layers)
              if variable.name == 'gamma'}
    zero = {path for path, values in gammas.items() if values.tolist() == [0.0]}
    assert zero == {f'{layer.name}/convolution_2/batch_normalization/gamma' for layer in layers[1:-1]}
    assert all(values.tolist() == [1.0] for path, values in gammas.items() if path not in zero)


def test_lars_adapts_kernels_and_skips_scales_offsets_and_the_bias():
    variables = stacks.weights_of(stacks.unallocated(resnet.resnet_layers())[0])
    skipped = [any(text in variable.path for text in optimizers.LARS().skip_list) for variable in variables]
    assert skipped == [len(variable.shape) == 1 for variable in variables]


def test_a_strided_convolution_pads_both_sides_alike():
    params = resnet.ResNetConvolution.Params().Set(name='convolution', filters=1, kernel_size=3, strides=2, relu=False)
    layer = params.Instantiate()
    image = tf.reshape(tf.range(16, dtype=tf.float32), (1, 4, 4, 1))
    layer.build(image.shape)
    layer.convolution.kernel.assign(tf.ones((3, 3, 1, 1)))
    # By hand: sums of the 3x3 around pixels (0, 0), (0, 2), (2, 0) and (2, 2).
    np.testing.assert_allclose(layer(image)[0, :, :, 0], np.array([[10, 24], [51, 90]]) / np.sqrt(1 + 1e-5), rtol=1e-6)


def test_every_weight_receives_a_finite_gradient_and_logits_are_float32():
    layers, _ = stacks.built([params.Set(dtype_policy='mixed_bfloat16')
                              for params in resnet.resnet_layers(10, num_classes=5, filters=4)], (None, 32, 32, 1))
    for layer in layers[1:-1]:
        layer.convolutions[-1].batch_norm.gamma.assign_add(tf.ones_like(layer.convolutions[-1].batch_norm.gamma))
    x = tf.random.stateless_normal((4, 32, 32, 1), seed=(1, 2))
    with tf.GradientTape() as tape:
        for layer in layers:
            x = layer(x, training=True) if layer.name != 'head' else layer(x)
        loss = tf.reduce_mean(x**2)
    weights = stacks.weights_of(layers)
    gradients = tape.gradient(loss, [weight.value for weight in weights])
    assert all(gradient is not None and np.all(np.isfinite(gradient)) for gradient in gradients)
    assert x.dtype == tf.float32
    assert {weight.dtype for weight in weights} == {'float32'}
    assert {sub.compute_dtype for layer in layers for sub in layer._flatten_layers()} == {'bfloat16'}


def test_an_unknown_depth_and_images_of_unknown_size_are_refused():
    with pytest.raises(ValueError, match='depth=42 is none of .*such as 50'):
        resnet.resnet_layers(42)
    with pytest.raises(ValueError, match='ResNetStem received images of shape'):
        stacks.built(resnet.resnet_layers(), (None, None, 32, 3))
