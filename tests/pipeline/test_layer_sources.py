import keras
import numpy as np
import pytest
import tensorflow as tf

from lingpipe.pipeline import gpipe_layer
from tests import needs
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


@needs.xla_on_cpus
def test_a_plain_copy_has_the_present_weights_on_one_device(assert_close):
    def grouped():
        inputs = keras.Input([8, 8, 4])
        inner = keras.Sequential(
            [layers.Conv2D(4, 3, groups=2, padding='same'), layers.BatchNormalization()], name='inner')
        hidden = inner(layers.Conv2D(4, 3, padding='same', name='stem')(inputs))
        return keras.Model(inputs, layers.Dense(2, name='head')(inner(hidden) + inputs), name='grouped')

    source, x = grouped(), np.random.default_rng(0).normal(size=(4, 8, 8, 4)).astype('float32')
    source.get_layer('inner').layers[1].trainable = False
    pipe = from_keras(source, num_partitions=3, num_micro_batches=2)
    source.get_layer('stem').kernel.assign(source.get_layer('stem').kernel * 2.0)
    copy = pipe.to_keras()
    assert_close(copy.predict(x, verbose=0), pipe(x).numpy())
    assert {variable.value.device[-5:] for variable in copy.variables} == {'CPU:0'}
    assert [variable.name for variable in copy.trainable_variables] == [
        variable.name for variable in source.trainable_variables]
    copy.get_layer('head').kernel.assign(np.zeros([4, 2]))
    assert np.any(source.get_layer('head').kernel)


class Tabled(layers.Layer):
    """Keeps numbers of its own, which it saves by Keras's methods."""

    table = 0.0

    def call(self, inputs):
        return inputs + keras.ops.cast(self.table, inputs.dtype)

    def save_own_variables(self, store):
        store['table'] = self.table

    def load_own_variables(self, store):
        self.table = store['table']


def adapted():
    lookup, words = layers.StringLookup(), np.array([['a', 'b'], ['b', 'unknown'], ['c', 'a'], ['a', 'a']])
    lookup.adapt(words)
    inputs = keras.Input([2], dtype='string')
    return keras.Sequential([inputs, lookup, layers.Embedding(9, 3), layers.Flatten(), layers.Dense(2)]), tf.constant(words)


def tabled():
    model = keras.Sequential([keras.Input([4]), Tabled(), layers.Dense(2)])
    model.layers[0].table = 3.0
    return model, np.ones([4, 4], 'float32')


def low_rank():
    model = keras.Sequential([keras.Input([4]), layers.Dense(4, 'tanh'), layers.Dense(4)])
    model.quantize('int8')
    for layer in model.layers:
        layer.enable_lora(2)
        layer.lora_kernel_b.assign(np.ones(layer.lora_kernel_b.shape))
    return model, np.ones([4, 4], 'float32')


class Moving(layers.Layer):
    """Divides by a variable that only TensorFlow knows."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.scale = tf.Variable(1.0, trainable=False)

    def call(self, inputs):
        return inputs / self.scale

    def compute_output_spec(self, inputs):
        return keras.KerasTensor(inputs.shape, inputs.dtype)


def moved():
    model = keras.Sequential([keras.Input([3]), Moving(), layers.Dense(2)])
    model.layers[0].scale.assign(4.0)
    return model, np.ones([2, 3], 'float32')


class Inner(layers.Layer):
    """Makes a layer without saying of which precision it is."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = layers.Dense(3)

    def build(self, shape):
        self.dense.build(shape)

    def call(self, inputs):
        return self.dense(inputs)


def made_by_policy():
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy('mixed_bfloat16')
    model = keras.Sequential([keras.Input([3]), Inner(), layers.Dense(2)])
    keras.config.set_dtype_policy(before)
    return model, np.ones([2, 3], 'float32')


@pytest.mark.parametrize('make', [adapted, tabled, low_rank, moved, made_by_policy])
def test_a_plain_copy_computes_as_its_source(make, assert_close):
    model, x = make()
    assert_close(from_keras(model, num_partitions=2).to_keras()(x), model(x))


def test_a_plain_copy_that_would_share_weights_or_lack_some_is_refused():
    class Wide(layers.Layer):
        def __init__(self, units=3, **kwargs):
            super().__init__(**kwargs)
            self.dense = layers.Dense(units)

        def call(self, inputs):
            return self.dense(inputs)

        def get_config(self):
            return {'name': self.name}

    inputs = keras.Input([4])
    pipe = from_keras(keras.Model(inputs, Wide(5, name='wide')(inputs)))
    with pytest.raises(ValueError, match="'wide' has other weights or"):
        pipe.to_keras()
    dense = layers.Dense(4)
    model = keras.Model(inputs, keras.ops.matmul(dense(inputs), dense.kernel))
    with pytest.raises(ValueError, match='by reference'):
        from_keras(model).to_keras()


@keras.saving.register_keras_serializable(package='tests')
class Transposed(layers.Layer):
    """A head that reads the kernel of another layer, which its config holds."""

    def __init__(self, dense, **kwargs):
        super().__init__(**kwargs)
        self.dense = dense

    def call(self, inputs):
        return keras.ops.matmul(inputs, keras.ops.transpose(self.dense.kernel))

    def get_config(self):
        return {**super().get_config(), 'dense': keras.saving.serialize_keras_object(self.dense)}

    @classmethod
    def from_config(cls, config):
        return cls(keras.saving.deserialize_keras_object(config.pop('dense')), **config)


def test_a_plain_copy_in_which_layers_share_no_weight_any_more_is_refused():
    inputs, dense = keras.Input([4]), layers.Dense(5, name='embedding')
    model = keras.Model(inputs, Transposed(dense, name='head')(dense(inputs)))
    with pytest.raises(ValueError, match="'head' shares 'embedding/kernel' with another layer"):
        from_keras(model, num_partitions=2).to_keras()
