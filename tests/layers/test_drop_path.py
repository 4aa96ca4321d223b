import keras
import numpy as np
import pytest
import tensorflow as tf

from lingpipe.layers import amoebanet_operations, base_layer


@pytest.fixture(autouse=True)
def fixed_seed():
    keras.utils.set_random_seed(0)


def make_drop_path(**fields):
    layer = amoebanet_operations.DropPath.Params().Set(name='drop_path', **fields).Instantiate()
    layer.build((None, 2, 2, 3))
    return layer


def test_drop_path_drops_whole_examples_and_keeps_the_expected_value():
    inputs = np.random.default_rng(0).normal(1.0, 0.1, (4000, 2, 2, 3)).astype('float32')
    outputs = make_drop_path(final_keep_prob=0.7)(inputs, training=True).numpy()
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


@pytest.mark.parametrize('step, num_training_steps', [(None, 1000), (10, None), (10, 0)])
def test_keep_prob_is_final_without_a_step_or_a_schedule(step, num_training_steps):
    layer = make_drop_path(final_keep_prob=0.6, num_training_steps=num_training_steps)
    with base_layer.training_step(step):
        assert layer.keep_prob() == 0.6


@pytest.mark.parametrize('final_keep_prob, training', [(0.5, False), (1.0, True)])
def test_drop_path_is_the_identity(final_keep_prob, training):
    inputs = tf.ones((100, 2, 2, 3))
    assert make_drop_path(final_keep_prob=final_keep_prob)(inputs, training=training) is inputs


def test_drop_path_is_a_function_of_the_seed_state():
    layer = make_drop_path(final_keep_prob=0.5)
    state = layer.seed_generator.state

    def draw(seed):
        with keras.StatelessScope(state_mapping=[(state, tf.constant(seed, state.dtype))]):
            return layer(tf.ones((64, 1, 1, 1)), training=True).numpy().ravel()

    assert np.array_equal(draw([1, 2]), draw([1, 2]))
    assert not np.array_equal(draw([1, 2]), draw([1, 3]))
    assert not np.array_equal(draw([1, 2]), draw([2, 2]))


def test_paths_drawn_together_are_independent():
    first, second = (scale.numpy().ravel() for scale in
                     make_drop_path(final_keep_prob=0.5).draw_scales(tf.ones((4000, 2, 2, 3)), num_paths=2))
    assert abs(np.corrcoef(first, second)[0, 1]) < 4 / np.sqrt(4000)


def test_drop_path_keeps_the_compute_dtype():
    layer = make_drop_path(final_keep_prob=0.5, dtype_policy='mixed_bfloat16')
    outputs = layer(tf.ones((100, 1, 1, 1)), training=True)
    assert outputs.dtype == tf.bfloat16
    assert set(np.unique(outputs.numpy().astype('float32'))) == {0.0, 2.0}


@pytest.mark.parametrize('final_keep_prob', [0.0, 1.1])
def test_drop_path_rejects_a_keep_prob_outside_its_range(final_keep_prob):
    with pytest.raises(ValueError, match=r'final_keep_prob is .* not in \(0, 1\]'):
        make_drop_path(final_keep_prob=final_keep_prob)
