import keras
import numpy as np
import pytest
import tensorflow as tf

from lingpipe.layers.keras_params import KerasParams
from tests.pipeline.small_stacks import images_and_labels
from tests.plain_stack import make_pipe

layers = keras.layers


def stack():
    return [
        KerasParams(layers.Conv2D, filters=4, kernel_size=3, name='convolution'),
        KerasParams(layers.BatchNormalization, momentum=0.9, name='norm'),
        KerasParams(layers.Activation, activation='relu', name='activation'),
        KerasParams(layers.Flatten, name='flatten'),
        KerasParams(layers.LayerNormalization, name='layer_norm'),
        KerasParams(layers.Dense, units=6, activation='gelu', name='hidden'),
        KerasParams(layers.Dense, units=5, name='logits')]


def cross_entropy(labels, logits):
    assert logits.dtype == tf.float32
    return keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)


def trained(num_partitions, policy='mixed_bfloat16', **fields):
    keras.utils.set_random_seed(1)
    x, y = images_and_labels()
    pipe = make_pipe(stack(), num_partitions=num_partitions, num_micro_batches=2, dtype_policy=policy, random_seed=0,
                     **{'schedule': '1f1b', **fields})
    pipe.build(x.shape)
    return pipe, pipe.value_and_grad(cross_entropy, x, y, return_outputs=True)


@pytest.mark.parametrize('schedule, recompute, num_partitions', [
    ('1f1b', 'stage', 4), ('zb_h1', 'none', 2)])
def test_bfloat16_gives_the_same_bits_for_every_number_of_partitions(schedule, recompute, num_partitions):
    pipe, one = trained(1, schedule=schedule, recompute=recompute)
    other_pipe, other = trained(num_partitions, schedule=schedule, recompute=recompute)
    tf.nest.map_structure(np.testing.assert_array_equal, (one.loss, one.outputs, one.gradients),
                          (other.loss, other.outputs, other.gradients))
    for variable, same in zip(pipe.weights, other_pipe.weights):
        np.testing.assert_array_equal(variable.numpy(), same.numpy())


def test_boundaries_are_bfloat16_and_kept_tensors_are_float32():
    pipe, out = trained(3)
    boundaries = [pipe.analyses[end - 1].outputs.dtype for end in pipe.cut.ends]
    assert boundaries == [tf.bfloat16] * 3 and out.outputs.dtype == tf.bfloat16
    assert {tensor.dtype for tensor in [out.loss, *out.gradients]} == {tf.float32}
    assert {variable.dtype for variable in pipe.weights} - {'uint32', 'int64'} == {'float32'}
    x, y = images_and_labels()
    graph = tf.function(lambda: pipe.value_and_grad(cross_entropy, x, y).loss).get_concrete_function().graph
    sent = {tensor.dtype for operation in graph.get_operations() if operation.type == 'PartitionedCall'
            for tensor in operation.inputs
            if tensor.op.type == 'PartitionedCall' and tensor.op.device != operation.device
            and tensor.shape.rank and tensor.shape.rank > 1}
    assert sent == {tf.bfloat16}


def test_a_layer_keeps_a_policy_of_its_own():
    pipe = make_pipe([*stack()[:-1], stack()[-1].Set(dtype='float32')], dtype_policy='mixed_bfloat16')
    assert [layer.compute_dtype for layer in pipe.stack] == ['bfloat16'] * 6 + ['float32']
    assert pipe(images_and_labels()[0]).dtype == tf.float32


def test_small_gradients_survive_float16_only_with_a_scaled_loss():
    pipe = make_pipe([KerasParams(layers.Dense, units=4), KerasParams(layers.Dense, units=1)], num_partitions=2,
                     dtype_policy='mixed_float16')
    x = np.ones([2, 3], 'float32')
    pipe.build(x.shape)

    def tiny(unused_targets, outputs):
        return outputs[:, 0] * 1e-9

    lost, kept = (pipe.value_and_grad(tiny, x, x, loss_scale=scale) for scale in (None, 2.0 ** 15))
    assert float(tf.reduce_max(tf.abs(lost.gradients[0]))) == 0
    np.testing.assert_allclose(tf.reduce_max(tf.abs(kept.gradients[0])),
                               1e-9 * np.abs(pipe.stack[1].kernel.numpy()).max(), rtol=0.1)
