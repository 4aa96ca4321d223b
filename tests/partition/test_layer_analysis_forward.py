import keras
import numpy as np
import tensorflow as tf

from lingpipe.partition import layer_analysis


def test_outputs_and_gradients_are_those_of_the_layer_itself():
    keras.utils.set_random_seed(0)
    layer, inputs = keras.layers.Dense(3, activation='tanh'), tf.random.normal([4, 5])
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        expected = layer(inputs)
    given = tf.random.normal([4, 3])
    expected_gradients = tape.gradient(
        expected, [inputs, *[weight.value for weight in layer.trainable_variables]], given)
    values = [tf.convert_to_tensor(variable) for variable in layer.variables]
    outputs, gradients = layer_analysis.forward_and_backward(layer, inputs, values, lambda outputs: [given])
    np.testing.assert_allclose(outputs, expected, rtol=1e-6)
    for actual, wanted in zip(gradients, expected_gradients, strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=1e-6)


def test_given_values_stand_in_for_the_variables_and_no_variable_changes():
    layer = keras.layers.BatchNormalization()
    layer.build((None, 2))
    before = [variable.numpy() for variable in layer.variables]
    values = [tf.fill(variable.shape, 3.0) for variable in layer.variables]
    outputs = layer_analysis.forward(layer, tf.constant([[1.0, 2.0], [3.0, 4.0]]), values)
    np.testing.assert_allclose(outputs, [[0.0, 0.0], [6.0, 6.0]], atol=5e-3)  # gamma and beta are 3
    np.testing.assert_array_equal([variable.numpy() for variable in layer.variables], before)


def test_integers_have_no_gradient_and_frozen_weights_none():
    layer = keras.layers.Embedding(5, 2)
    layer.build((None, 3))
    inputs, values = tf.constant([[0, 1, 1]]), [tf.zeros([5, 2])]
    _, gradients = layer_analysis.forward_and_backward(layer, inputs, values, lambda outputs: [tf.ones([1, 3, 2])])
    np.testing.assert_array_equal(gradients[0][:, 0], [1, 2, 0, 0, 0])
    layer.trainable = False
    assert layer_analysis.forward_and_backward(layer, inputs, values, lambda outputs: [tf.ones([1, 3, 2])])[1] == []
