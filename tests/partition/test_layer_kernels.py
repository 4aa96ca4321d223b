import keras
import pytest
import tensorflow as tf

from lingpipe.layers import embeddings, keras_params
from lingpipe.partition import layer_analysis, layer_kernels

layers = keras.layers


def found(constructor, spec, **arguments):
    return layer_kernels.layer_kernels([keras_params.KerasParams(constructor, **arguments)], spec)[0]


def sizes(kernels):
    return sorted((kernel.num_bytes, kernel.product is not None) for kernel in kernels)


def flops(kernels):
    return sum(2 * product.rows * product.columns * product.depth * product.num_products
               for product in (kernel.product for kernel in kernels) if product)


def test_a_dense_layer_is_a_product_and_what_is_fused_after_it():
    x, kernel, y, bias = 4 * 3 * 5, 4 * 5 * 7, 4 * 3 * 7, 4 * 7
    dense = found(layers.Dense, tf.TensorSpec([3, 5]), units=7, activation='relu')
    assert sizes(dense.forward) == [(2 * y + bias, False), (x + kernel + y, True)]
    # relu's gradient reads y and its gradient, and writes that of what the bias was added to, and of the bias
    assert sizes(dense.backward) == sorted(
        [(3 * y + bias, False), (y + kernel + x, True), (x + y + kernel, True)])
    assert dense.forward[0].product[:4] == (3, 7, 5, 1)


def test_the_products_of_a_pass_are_those_that_its_operations_count():
    spec = tf.TensorSpec([2, 9, 8, 4])
    for constructor, arguments in [
            (layers.Conv2D, {'filters': 6, 'kernel_size': 3, 'strides': 2}),
            (layers.Conv2DTranspose, {'filters': 6, 'kernel_size': 3}),
            (layers.DepthwiseConv2D, {'kernel_size': 3, 'depth_multiplier': 2})]:
        params = keras_params.KerasParams(constructor, use_bias=False, **arguments)
        counted = 2 * layer_analysis.analyse_layers([params], spec)[0].flops.contractions
        kernels, = layer_kernels.layer_kernels([params], spec)
        assert (flops(kernels.forward), flops(kernels.backward)) == (counted, 2 * counted)


class Chain(layers.Layer):
    """exp(x W) W + x, in two products that have something to fuse between them and after."""

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], shape[-1]), name='kernel')

    def call(self, inputs):
        return keras.ops.exp(2 * keras.ops.matmul(inputs, self.kernel)) @ self.kernel + inputs


def test_what_lies_between_two_products_is_one_kernel():
    x, kernel = 4 * 3 * 16, 4 * 16 * 16
    assert sizes(found(Chain, tf.TensorSpec([3, 16])).forward) == sorted(
        [(x + kernel + x, True), (x + x, False), (x + kernel + x, True), (x + x + x, False)])


def test_the_backward_pass_of_a_norm_reads_what_went_in():
    size, vector = 4 * 64 * 128, 4 * 128
    norm = found(layers.LayerNormalization, tf.TensorSpec([64, 128]))
    assert sizes(norm.forward) == [(2 * size + 2 * vector, False)]
    assert sizes(norm.backward) == [(size + vector, False), (3 * size + 2 * vector, False)]  # the former for the offsets


def test_an_embedding_reads_the_rows_that_are_looked_up():
    params = embeddings.TokenEmbedding.Params().Set(name='table', vocab_size=1000, model_dim=8)
    (kernel,), _, _ = layer_kernels.layer_kernels([params], tf.TensorSpec([2, 3], tf.int32))[0]
    rows = 4 * 2 * 3 * 8
    assert kernel.num_bytes == 2 * rows + 4 * 2 * 3


@pytest.mark.parametrize('units, dtype, is_aligned', [
    (8, 'float16', True), (12, 'float16', False), (12, 'float32', True), (7, 'float32', False)])
def test_rows_that_are_no_multiple_of_16_bytes_are_not_aligned(units, dtype, is_aligned):
    dense = found(layers.Dense, tf.TensorSpec([3, 16], dtype), units=units, dtype=dtype)
    products = [kernel.product for kernel in [*dense.forward, *dense.backward] if kernel.product]
    assert len(products) == 3 and {(product.is_aligned, product.dtype) for product in products} == {(is_aligned, dtype)}


def test_a_pass_that_backward_does_not_read_from_is_not_recomputed():
    convolution = found(layers.Conv2D, tf.TensorSpec([2, 8, 8, 4]), filters=8, kernel_size=3)
    chain = found(Chain, tf.TensorSpec([3, 16]))
    assert convolution.recomputed == [] and len(chain.recomputed) == 2
