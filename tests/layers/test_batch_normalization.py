import keras
import numpy as np
import pytest
import tensorflow as tf

from lingpipe.layers import batch_normalization


@pytest.mark.parametrize('with_mask', [False, True])
def test_alone_it_is_kerass_batch_norm(with_mask, assert_close):
    random = np.random.default_rng(0)
    x = random.normal(size=[4, 5, 3]).astype('float32') * 2 + 1
    mask = random.integers(0, 2, [4, 5]).astype(bool) if with_mask else None
    results = []
    for norm in (keras.layers.BatchNormalization(momentum=0.9),
                 batch_normalization.BatchNormalization(momentum=0.9, group_size=4)):
        norm.build(x.shape)
        with tf.GradientTape() as tape:
            inputs = tf.constant(x)
            tape.watch(inputs)
            loss = tf.reduce_sum(tf.sin(norm(inputs, training=True, mask=mask)))
        results.append((tape.gradient(loss, inputs), [weight.numpy() for weight in norm.weights]))
    assert_close(*results)


def test_its_config_makes_it_again():
    norm = batch_normalization.BatchNormalization(group_size=4, momentum=0.5)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(norm))
    assert (again.group_size, again.momentum) == (4, 0.5)
