import math
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from lingpipe import layers
from lingpipe.models import language_model

RNG = np.random.default_rng(0)
LABELS = tf.constant(RNG.integers(0, 5, (3, 4)), tf.int32)
LOGITS = tf.constant(RNG.normal(size=(3, 4, 5)), tf.float32)
ONES = tf.ones([3, 4])


def make_task(**fields):
    params = language_model.LanguageModel.Params().Set(name='task', **fields)
    params.body.layers = [layers.KerasParams(keras.layers.Dense, units=5)]
    return params.Instantiate()


@pytest.mark.parametrize('smoothing', [0.0, 0.1, 0.5])
def test_the_loss_is_that_of_keras(smoothing):
    keras_loss = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=smoothing)
    loss, weight = make_task(label_smoothing=smoothing).loss((LABELS, ONES, ONES), LOGITS)['loss']
    np.testing.assert_allclose(loss, keras_loss(tf.one_hot(LABELS, 5), LOGITS), rtol=1e-6)
    assert float(weight) == 12


def test_padding_does_not_count():
    weights = tf.constant([[1.0, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0]])
    metrics = make_task(label_smoothing=0.1).loss((LABELS, weights, ONES), LOGITS)
    alone = make_task(label_smoothing=0.1).loss(
        tuple(tf.concat([part[0], part[1, :2]], 0) for part in (LABELS, ONES, ONES)),
        tf.concat([LOGITS[0], LOGITS[1, :2]], 0))
    for name, (mean, weight) in metrics.items():
        np.testing.assert_allclose([mean, weight], alone[name], rtol=1e-6)
    nothing = make_task().loss((LABELS, tf.zeros([3, 4]), ONES), LOGITS)
    assert {float(value) for pair in nothing.values() for value in pair} == {0.0}


def test_bits_per_byte_use_plain_cross_entropy_and_token_lengths():
    logits = tf.math.log([[[0.5, 0.3, 0.2], [0.1, 0.8, 0.1]]])
    targets = tf.constant([[0, 2]]), tf.ones([1, 2]), tf.constant([[1.0, 3.0]])
    metrics = make_task(label_smoothing=0.3).loss(targets, logits)
    bits, num_bytes = metrics['bits_per_byte']
    np.testing.assert_allclose(bits, -(math.log2(0.5) + math.log2(0.1)) / 4, rtol=1e-6)
    assert float(num_bytes) == 4
    assert [float(value) for value in metrics['accuracy']] == [0.5, 2.0]


def test_logits_of_half_precision_are_compared_in_single_precision():
    logits = tf.cast(LOGITS, tf.bfloat16)
    loss, _ = make_task().loss((LABELS, ONES, ONES), logits)['loss']
    np.testing.assert_allclose(loss, make_task().loss((LABELS, ONES, ONES), tf.cast(logits, tf.float32))['loss'][0])


def input_of(vocab_size, shape, num_targets=3):
    return types.SimpleNamespace(params=None, tokenizer=types.SimpleNamespace(vocab_size=vocab_size),
                                 TargetSpec=lambda params: [tf.TensorSpec(shape)] * num_targets)


@pytest.mark.parametrize('vocab_size, shape, num_targets, words', [
    (6, [3, 4], 3, 'vocab_size=6, but the body ends in 5 logits'),
    (5, [3], 3, r'labels of shape \[\] for an example, but .* logits of shape \[4, 5\], which need \[4\]. Use another input.'),
    (5, [3, 4], 2, 'gives 2 tensors beside its inputs, but LanguageModel takes 3')])
def test_inputs_that_do_not_fit_the_logits_are_refused(vocab_size, shape, num_targets, words):
    task = make_task()
    task.body.build_from_specs(tf.TensorSpec([3, 4, 2]))
    with pytest.raises(ValueError, match=words):
        task.check_input(input_of(vocab_size, shape, num_targets))
    task.check_input(input_of(5, [3, 4]))
