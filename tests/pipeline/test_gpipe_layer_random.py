"""Random numbers depend on seed, step, layer and micro-batch, and on nothing else."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from lingpipe.layers import amoebanet_operations
from lingpipe.layers.keras_params import KerasParams
from lingpipe.pipeline import gpipe_layer
from tests.plain_stack import make_pipe

layers = keras.layers
ONES = np.ones((8, 200), np.float32)


def drop_out(rate=0.5):
    return KerasParams(layers.Dropout, rate=rate)


def total(unused_y_true, outputs):
    return tf.reduce_sum(tf.nest.flatten(outputs)[0], -1)


def masks(pipe, step=0, x=ONES):
    """Return which values were kept, an array of booleans `[micro-batch, row, value]`."""
    outputs = pipe.value_and_grad(total, x, x, step=step, return_outputs=True).outputs
    return np.reshape(outputs, (pipe.params.num_micro_batches, -1, x.shape[-1])) != 0


def are_independent(one, other, rate=0.5):
    """Whether masks agree as often as independent ones do, within five standard deviations."""
    expected = rate**2 + (1 - rate)**2
    return abs(np.mean(one == other) - expected) < 5 * np.sqrt(expected * (1 - expected) / one.size)


def test_masks_of_steps_and_micro_batches_and_layers_are_independent():
    single = make_pipe([drop_out()], num_micro_batches=2)
    first, second = masks(single, step=0), masks(single, step=1)
    assert are_independent(first, second)
    assert are_independent(first[0], first[1])
    doubled = masks(make_pipe([drop_out(), drop_out()], num_micro_batches=2))
    assert abs(doubled.mean() - 0.25) < 5 * np.sqrt(0.25 * 0.75 / doubled.size)


def test_masks_of_one_step_are_the_same_again():
    pipe = make_pipe([drop_out()], num_micro_batches=2)
    first = masks(pipe, step=3)
    masks(pipe, step=4)
    np.testing.assert_array_equal(masks(pipe, step=3), first)
    np.testing.assert_array_equal(masks(make_pipe([drop_out()], num_micro_batches=2), step=3), first)
    other_seed = make_pipe([drop_out()], num_micro_batches=2, random_seed=8)
    assert are_independent(masks(other_seed, step=3), first)


def test_steps_count_by_themselves_where_no_number_is_given():
    counted, given = [make_pipe([drop_out()], num_micro_batches=2) for _ in range(2)]
    for step in range(3):
        np.testing.assert_array_equal(masks(counted, step=None), masks(given, step=step))
    assert are_independent(
        np.asarray(counted(ONES, training=True) != 0), np.asarray(counted(ONES, training=True) != 0))


def test_a_layer_that_its_model_calls_for_training_trains_in_every_call():
    inputs = keras.Input([200])
    dropped = layers.Dropout(0.5)(layers.Identity()(inputs), training=True)
    pipe = gpipe_layer.GPipeLayer.from_keras(keras.Model(inputs, dropped), num_partitions=2)
    assert are_independent(np.asarray(pipe(ONES) != 0), np.asarray(pipe(ONES) != 0))


def test_evaluation_drops_nothing_and_does_not_count():
    pipe, other = [make_pipe([drop_out()], num_micro_batches=2) for _ in range(2)]
    np.testing.assert_array_equal(pipe(ONES, training=False), ONES)
    assert pipe.evaluate(total, ONES, ONES)['loss'][0] == ONES.size
    np.testing.assert_array_equal(masks(pipe, step=None), masks(other, step=None))


@pytest.mark.parametrize('recompute', ['none', 'selective', 'stage', 'layer'])
def test_backward_uses_the_masks_of_forward(recompute):
    pipe = make_pipe([drop_out(), drop_out(), drop_out()], num_partitions=3, num_micro_batches=2, recompute=recompute)
    x = tf.constant(ONES)
    with tf.GradientTape() as tape:
        tape.watch(x)
        outputs = pipe(x, training=True)
    np.testing.assert_array_equal(tape.gradient(outputs, x), outputs)


class DropsPath(amoebanet_operations.DropPath):
    def call(self, inputs, training=None):
        return inputs * self.draw_scales(inputs, num_paths=1)[0] if self.is_active(training) else inputs


def stack_with_drop_out():
    return [
        KerasParams(layers.Dense, units=16, activation='tanh'), drop_out(0.3), KerasParams(layers.BatchNormalization),
        KerasParams(DropsPath, final_keep_prob=0.6, num_training_steps=None),
        KerasParams(layers.GaussianNoise, stddev=0.5), KerasParams(layers.Dense, units=8), drop_out(0.5), KerasParams(layers.Dense, units=4)]


@pytest.mark.parametrize(
    'num_micro_batches, others', [(1, [(8, 'stage')]), (2, [(1, 'stage'), (2, 'none'), (2, 'selective'), (3, 'layer')])])
def test_drop_out_does_not_depend_on_partitions_or_recomputation(num_micro_batches, others, assert_close):
    random = np.random.default_rng(0)
    x, y = random.normal(size=(8, 10)).astype('float32'), random.normal(size=(8, 4)).astype('float32')

    def run(num_partitions, recompute):
        pipe = make_pipe(stack_with_drop_out(), num_partitions=num_partitions, recompute=recompute,
                         num_micro_batches=num_micro_batches)
        outs = [pipe.value_and_grad(keras.losses.MeanSquaredError(), x, y, step=step, return_outputs=True)
                for step in (0, 5)]
        return [(out.loss, out.outputs, out.gradients) for out in outs], [weight.numpy() for weight in pipe.weights]

    expected = run(1, 'none')
    for num_partitions, recompute in others:
        assert_close(run(num_partitions, recompute), expected)


def test_layers_with_a_schedule_see_the_step():
    pipe = make_pipe(
        [KerasParams(DropsPath, final_keep_prob=0.5, num_training_steps=100)], num_partitions=1,
        num_micro_batches=2)
    x = np.ones((400, 2), np.float32)
    kept = [masks(pipe, step, x)[..., 0].mean() for step in (0, 50, 100, 1000)]
    assert kept[0] == 1.0
    np.testing.assert_allclose(kept[1:], [0.75, 0.5, 0.5], atol=5 * 0.5 / 20)


class Noise(layers.Layer):
    """Draws from a generator that other layers may draw from too."""

    def __init__(self, generator):
        super().__init__()
        self.seed_generator = generator

    def call(self, inputs):
        return keras.random.uniform(keras.ops.shape(inputs), seed=self.seed_generator)


@pytest.mark.parametrize('num_partitions', [1, 2])
def test_layers_that_share_a_generator_draw_different_numbers(num_partitions):
    inputs, generator = keras.Input([4]), keras.random.SeedGenerator(1)
    model = keras.Model(inputs, [Noise(generator)(inputs), Noise(generator)(inputs)])
    pipe = gpipe_layer.GPipeLayer.from_keras(model, num_partitions=num_partitions, num_micro_batches=2)
    assert len(np.unique(pipe(ONES[:, :4], training=True))) == 2 * 8 * 4
