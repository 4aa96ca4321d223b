import keras
import numpy as np
import pytest

from lingpipe.pipeline import gpipe_layer
from tests.plain_stack import loss_and_gradients, mean_square

layers = keras.layers
from_keras = gpipe_layer.GPipeLayer.from_keras


def u_net():
    inputs = keras.Input([16, 16, 3])
    down = [layers.Conv2D(4, 3, padding='same', activation='gelu', name='first')(inputs)]
    for depth in range(2):
        pooled = layers.MaxPooling2D(name=f'pool_{depth}')(down[-1])
        down.append(layers.Conv2D(8, 3, padding='same', activation='gelu', name=f'down_{depth}')(pooled))
    hidden = down.pop()
    for depth in range(2):
        hidden = layers.Concatenate(name=f'skip_{depth}')([layers.UpSampling2D(name=f'up_{depth}')(hidden), down.pop()])
        hidden = layers.Conv2D(4, 3, padding='same', activation='gelu', name=f'merge_{depth}')(hidden)
    return keras.Model(inputs, layers.Conv2D(2, 1, name='head')(hidden), name='u_net')


@pytest.mark.parametrize('schedule, recompute', [('1f1b', 'layer'), ('gpipe', 'selective')])
def test_loss_gradients_and_outputs_are_those_of_the_model(schedule, recompute, assert_close, assert_gradients_close):
    keras.utils.set_random_seed(0)
    model, x, y = u_net(), np.random.default_rng(0).normal(size=(4, 16, 16, 3)), np.ones([4, 16, 16, 2], 'float32')
    (loss, gradients), outputs = loss_and_gradients(model, mean_square, x, y), model(x)
    pipe = from_keras(model, num_partitions=3, num_micro_batches=2, schedule=schedule, recompute=recompute)
    out = pipe.value_and_grad(mean_square, x, y, return_outputs=True)
    assert_close((out.loss, out.outputs), (loss, outputs))
    assert_gradients_close(out.gradients, gradients)
    assert_close(pipe(x), model(x))


def test_a_memory_limit_counts_weights_and_what_enters():
    inputs = keras.Input([3], batch_size=4)
    first = layers.Dense(5, name='first')(inputs)
    second = layers.Dense(5, name='second')(first)
    model = keras.Model(inputs, layers.Add(name='sum')([second, first]))
    pipe = from_keras(
        model, num_partitions=2, num_micro_batches=2, schedule='gpipe', recompute='stage', partition_by=[1, 3],
        memory_limit=1e9, num_optimizer_slots=1)
    # Weights, sums, slot; for 2 rows what is read, and what enters with one more micro-batch; gradients of outputs,
    # inputs, weights.
    assert [part.memory for part in pipe.partitions] == [
        4 * (3 * 20 + 2 * 3 + 2 * 3 + 2 * 5 + 2 * 3 + 20), 4 * (3 * 30 + 2 * 5 + 2 * 5 + 2 * 5 + 2 * 5 + 30)]


def test_a_layer_that_returns_none_in_training_only_is_refused():
    class Auxiliary(layers.Layer):
        def call(self, inputs, training=False):
            return inputs, None if training else inputs

        def compute_output_spec(self, inputs, training=False):
            return keras.KerasTensor(inputs.shape, inputs.dtype), keras.KerasTensor(inputs.shape, inputs.dtype)

    inputs = keras.Input([4])
    hidden, _ = Auxiliary(name='auxiliary')(layers.Dense(4)(inputs))
    pipe = from_keras(keras.Model(inputs, layers.Dense(2)(hidden)))
    with pytest.raises(ValueError, match="'auxiliary' returns None for other outputs with training=False"):
        pipe(np.ones([2, 4], 'float32'))
