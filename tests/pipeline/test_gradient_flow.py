"""Gradients go from losses to trained weights, and nowhere else."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from lingpipe.models import pipeline_model
from lingpipe.pipeline import gpipe_layer
from tests.plain_stack import loss_and_gradients, mean_square, normal

layers = keras.layers
from_keras = gpipe_layer.GPipeLayer.from_keras


def calls(pipe, x, y):
    """Names of the functions that a step calls, such as 'stage_0_forward'."""
    graph = tf.function(lambda: pipe.value_and_grad(mean_square, x, y).gradients,
                        autograph=False).get_concrete_function().graph
    names = [
        operation.get_attr('f').name for operation in graph.get_operations() if operation.type == 'PartitionedCall']
    return {name.split('__inference_')[-1].rsplit('_', 1)[0] for name in names}


@pytest.mark.parametrize('recompute, schedule', [('stage', 'gpipe'), ('layer', '1f1b'), ('none', 'zb_h1')])
def test_frozen_first_partitions_have_no_backward_pass(recompute, schedule, assert_close):
    stack = [layers.Dense(8, activation='gelu') for _ in range(6)]
    model = keras.Sequential([keras.Input([8]), *stack])
    for layer in stack[:3]:
        layer.trainable = False
    x, y = normal(8, 8), normal(8, 8, seed=1)
    _, wanted = loss_and_gradients(model, mean_square, x, y)
    pipe = from_keras(
        model, num_partitions=3, num_micro_batches=4, partition_by=[2, 4, 6], recompute=recompute, schedule=schedule)
    assert_close(list(pipe.value_and_grad(mean_square, x, y).gradients), wanted)
    assert not [name for name in calls(pipe, x, y) if name.startswith('stage_0') and name != 'stage_0_forward']


def test_an_output_that_two_partitions_read_gets_both_gradients(assert_close):
    inputs = keras.Input([5])
    hidden = layers.Dense(4, activation='tanh')(inputs)
    later = layers.Dense(4, activation='tanh')(hidden)
    model = keras.Model(inputs, layers.Dense(1)(layers.Add()([later, hidden])))
    x, y = normal(8, 5), normal(8, 1)
    _, wanted = loss_and_gradients(model, mean_square, x, y)
    pipe = from_keras(model, num_partitions=3, num_micro_batches=2, partition_by=[1, 2, 4])
    assert_close(list(pipe.value_and_grad(mean_square, x, y).gradients), wanted)


def heads():
    x = keras.Input([5])
    hidden = layers.Dense(8, activation='tanh')(x)
    return keras.Model(x, {'near': layers.Dense(3, name='near')(hidden), 'far': layers.Dense(2, name='far')(hidden)})


@pytest.mark.parametrize('wrap', [lambda optimizer: optimizer, keras.optimizers.LossScaleOptimizer])
def test_weights_that_no_loss_reaches_have_no_gradient_and_stay(wrap):
    x, y = normal(8, 5), np.arange(8) % 3
    source = heads()
    before = source.get_layer('far').kernel.numpy()
    pipe = from_keras(source, num_partitions=3, num_micro_batches=2)
    out = pipe.value_and_grad(lambda y, outputs: mean_square(y, outputs['near']), x, normal(8, 3))
    assert [gradient is None for gradient in out.gradients] == [
        'far' in variable.path for variable in pipe.trainable_variables]
    model = pipeline_model.PipelineModel(pipe)
    optimizer = wrap(keras.optimizers.AdamW(0.1, weight_decay=0.1))
    model.compile(optimizer, {'near': keras.losses.SparseCategoricalCrossentropy(True)})
    with pytest.warns(UserWarning, match='Gradients do not exist'):
        model.fit(x, {'near': y}, batch_size=8, epochs=2, verbose=0)
    np.testing.assert_array_equal(source.get_layer('far').kernel, before)


def test_regularizers_that_would_give_no_gradient_are_refused():
    def trained(model):
        return from_keras(model, num_partitions=2).value_and_grad(mean_square, normal(4, 5), normal(4, 5))

    first = layers.Dense(5, name='first')
    second = layers.Dense(5, kernel_regularizer=lambda kernel: tf.reduce_sum((kernel - first.kernel) ** 2))
    model = keras.Sequential([keras.Input([5]), first, second])
    with pytest.raises(ValueError, match=r"reads \['.*first/kernel'\], trained weights that it is not given"):
        trained(model)
    first.trainable = False
    assert len(trained(model).gradients) == 2


def test_tapes_may_overlap_but_not_differentiate_gradients(assert_close):
    model = keras.Sequential(
        [keras.Input([5]), layers.Dense(4, activation='tanh', activity_regularizer='l2'), layers.Dense(1)])
    x, y = tf.constant(normal(4, 5)), normal(4, 1)
    _, wanted = loss_and_gradients(model, mean_square, x, y)
    pipe = from_keras(model, num_partitions=2, num_micro_batches=2)
    variables = [variable.value for variable in pipe.trainable_variables]
    with tf.GradientTape() as outer, tf.GradientTape(persistent=True) as inner:
        inner.watch(x)
        value = mean_square(y, pipe(x, training=True)) + tf.add_n(pipe.losses)
        with inner.stop_recording():
            penalty = tf.reduce_sum(inner.gradient(value, x) ** 2)
    assert_close(inner.gradient(value, variables), wanted)
    with pytest.raises(tf.errors.InvalidArgumentError, match='first-order gradients only'):
        outer.gradient(penalty, variables)
