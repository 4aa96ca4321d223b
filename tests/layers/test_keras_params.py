import inspect
import pickle

import keras
import numpy as np
import pytest

from lingpipe import hyperparams
from lingpipe.layers.keras_params import REQUIRED, KerasParams

BASE_FIELDS = {'autocast', 'dtype', 'name', 'trainable'}
DROP_THEIR_KEYWORD_ARGUMENTS = {'HashedCrossing', 'InputLayer', 'IntegerLookup', 'StringLookup'}  # Keras ignores them


class Scale(keras.layers.Layer):
    def __init__(self, N, offset, shift=2.0, **kwargs):
        super().__init__(**kwargs)
        self.N, self.offset, self.shift = N, offset, shift

    def call(self, x):
        return x * self.N + self.offset + self.shift


class AnyDense(keras.layers.Dense):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)


class TenDense(keras.layers.Dense):
    def __init__(self, extra=1, **kwargs):
        super().__init__(10, activation='relu', **kwargs)
        self.extra = extra


class Closed(keras.layers.Dense):
    def __init__(self, width):
        super().__init__(units=width)


class Secretive(keras.initializers.Initializer):
    def __init__(self, value):
        self.value = value

    def __call__(self, shape, dtype=None):
        return keras.ops.full(shape, self.value, dtype)


def dense(**kwargs):
    return KerasParams(keras.layers.Dense, **kwargs)


STOCK = [
    (dense(units=3, activation='relu'), (2, 4)),
    (dense(units=3, kernel_initializer=keras.initializers.HeNormal(seed=3), activation=keras.activations.gelu,
           kernel_regularizer=keras.regularizers.L2(0.1), bias_constraint=keras.constraints.NonNeg()), (2, 4)),
    (dense(units=3, dtype='mixed_bfloat16'), (2, 4)),
    (dense(units=3, dtype=keras.DTypePolicy('mixed_float16')), (2, 4)),
    (KerasParams(keras.layers.Conv2D, filters=3, kernel_size=2, strides=(2, 1), padding='same'), (2, 5, 6, 4)),
    (KerasParams(keras.layers.BatchNormalization, momentum=0.9), (2, 4)),
    (KerasParams(keras.layers.Dropout, rate=0.5, seed=7), (2, 4)),
    (dense(units=3, kernel_initializer=keras.initializers.RandomNormal(seed=keras.random.SeedGenerator(7))), (2, 4)),
    (KerasParams(keras.layers.Bidirectional, layer=KerasParams(keras.layers.LSTM, units=3)), (2, 5, 4)),
    (KerasParams(keras.layers.TimeDistributed, layer=dense(units=3)), (2, 5, 4)),
    (KerasParams(keras.layers.RNN, cell=KerasParams(keras.layers.StackedRNNCells, cells=[
        KerasParams(keras.layers.GRUCell, units=3), KerasParams(keras.layers.LSTMCell, units=2)])), (2, 5, 4)),
    (KerasParams(keras.layers.Reshape, target_shape=(2, -1)), (2, 4)),
    (KerasParams(keras.layers.ZeroPadding2D, padding=((1, 0), (0, 1))), (2, 5, 6, 4)),
    (KerasParams(keras.layers.Activation, activation='swish'), (2, 4)),
    (KerasParams(keras.layers.Lambda, function=keras.activations.tanh), (2, 4)),
    (KerasParams(keras.layers.RandomFlip, mode='horizontal', seed=1), (2, 5, 6, 3)),
    (KerasParams(keras.Sequential, layers=[dense(units=3), dense(units=2)]), (2, 4)),
    (KerasParams(Scale, N=2, offset=1), (2, 4)),
    (KerasParams(AnyDense, units=3), (2, 4)),
    (KerasParams(TenDense, use_bias=False), (2, 4)),
    (KerasParams(Closed, width=3), (2, 4)),
]


@pytest.mark.parametrize(('p', 'shape'), STOCK, ids=[f'{i}_{p.cls.__name__}' for i, (p, _) in enumerate(STOCK)])
def test_params_copy_read_text_pickle_and_instantiate_a_working_layer(p, shape):
    assert p.Copy() == p
    assert pickle.loads(pickle.dumps(p)) == p
    assert p.Copy().FromText(p.ToText()) == p
    assert KerasParams(p.cls).FromTextWithTypes(p.ToTextWithTypes()) == p
    holder = hyperparams.Params()
    holder.Define('layers', [], '')
    text = holder.Copy().Set(layers=[p]).ToTextWithTypes()
    assert holder.FromTextWithTypes(text).layers == [p]
    layer = p.Instantiate()
    assert type(layer) is p.cls
    outputs = layer(np.ones(shape, 'float32'))
    assert np.isfinite(keras.ops.convert_to_numpy(keras.ops.cast(outputs, 'float32'))).all()


def stock_layers():
    return sorted({cls for cls in vars(keras.layers).values() if inspect.isclass(cls)}, key=str)


@pytest.mark.parametrize('cls', stock_layers(), ids=lambda cls: cls.__name__)
def test_every_stock_layer_has_its_constructor_arguments_as_fields(cls):
    p = KerasParams(cls)
    parameters = inspect.signature(cls.__init__).parameters
    own = [parameter for parameter in parameters.values() if parameter.kind == parameter.POSITIONAL_OR_KEYWORD]
    for parameter in own[1:]:  # without self
        name = parameter.name
        expected = REQUIRED if parameter.default is parameter.empty else parameter.default
        assert p.Get(name) == expected or p.Get(name) is expected
    if 'kwargs' in parameters and cls.__name__ not in DROP_THEIR_KEYWORD_ARGUMENTS:
        assert BASE_FIELDS <= set(p.GetKeys())
    assert p.Copy().FromTextWithTypes(p.ToTextWithTypes()) == p


def test_what_a_base_class_requires_is_no_field_of_a_class_with_arguments():
    assert 'rank' not in KerasParams(keras.layers.Conv2D)  # Conv2D gives rank=2 to its base
    keys = set(KerasParams(TenDense).GetKeys())
    assert 'units' not in keys and {'extra', 'use_bias', 'name', 'trainable'} <= keys
    assert KerasParams(Closed).GetKeys() == ['cls', 'width']
    with pytest.raises(TypeError, match="multiple values for keyword argument 'activation'"):
        KerasParams(TenDense, activation='tanh').Instantiate()


def test_unknown_argument_names_the_nearest():
    with pytest.raises(AttributeError, match='unit is not a parameter; did you mean units'):
        dense(unit=3)
    with pytest.raises(AttributeError, match='did you mean units'):
        dense().units_ = 3


@pytest.mark.parametrize(('p', 'message'), [
    (dense(), 'Dense needs units; set it, as in KerasParams'), (KerasParams(AnyDense), 'AnyDense needs units'),
    (KerasParams(Scale, N=1), 'Scale needs offset'),
    (KerasParams(keras.layers.Embedding), 'needs input_dim and output_dim')])
def test_missing_required_argument_is_named(p, message):
    with pytest.raises(ValueError, match=message):
        p.Instantiate()


@pytest.mark.parametrize('initializer', [
    keras.initializers.HeNormal(), 'glorot_uniform', KerasParams(keras.initializers.HeNormal)])
def test_every_instance_draws_its_own_weights(initializer):
    p = KerasParams(keras.layers.Dense, units=4, kernel_initializer=initializer)
    kernels = []
    for layer in (p.Instantiate(), p.Instantiate(), p.Copy().Instantiate()):
        layer.build((None, 5))
        kernels.append(keras.ops.convert_to_numpy(layer.kernel))
    assert not np.allclose(kernels[0], kernels[1])
    assert not np.allclose(kernels[0], kernels[2])


def test_keras_objects_become_params_whose_fields_a_text_can_change():
    p = dense(units=3, kernel_initializer=keras.initializers.TruncatedNormal(stddev=0.2, seed=5))
    hyperparams.ApplyOverrides(p, 'kernel_initializer.stddev=0.3; units=4; activation=relu; kernel_regularizer=l2')
    layer = p.Instantiate()
    assert layer.kernel_initializer.get_config() == {'mean': 0.0, 'stddev': 0.3, 'seed': 5}
    assert (layer.units, layer.activation) == (4, keras.activations.relu)
    assert isinstance(layer.kernel_regularizer, keras.regularizers.L2)
    hyperparams.ApplyOverrides(p, "kernel_initializer='zeros'")
    assert isinstance(p.Instantiate().kernel_initializer, keras.initializers.Zeros)


def training_objects():
    modules = (keras.optimizers, keras.optimizers.schedules, keras.losses)
    return [pytest.param(f'{module.__name__}/{name}', cls, id=f'{module.__name__}.{name}') for module in modules
            for name, cls in vars(module).items() if inspect.isclass(cls)]


def holder():
    p = hyperparams.Params()
    p.Define('value', None, '')
    return p


@pytest.mark.parametrize(('name', 'cls'), training_objects())
def test_training_objects_are_read_from_text_by_public_names(name, cls):
    text = holder().Set(value=KerasParams(cls)).ToText()
    assert f'value.cls : type/{name}\n' in text
    assert holder().FromText(text).value == KerasParams(cls)


def test_nested_layer_is_overridden_by_text():
    p = KerasParams(keras.layers.Bidirectional, layer=KerasParams(keras.layers.LSTM, units=3))
    hyperparams.ApplyOverrides(p, 'layer.units=5; layer.cls=type/keras.layers/GRU')
    layer = p.Instantiate()
    assert isinstance(layer.forward_layer, keras.layers.GRU)
    assert layer(np.ones((2, 3, 4))).shape == (2, 10)
    assert p.Instantiate().forward_layer is not layer.forward_layer


def test_layers_and_objects_without_a_config_are_refused_in_words():
    with pytest.raises(TypeError, match=r'TimeDistributed.layer is given a Dense object.* KerasParams\(Dense, ...\)'):
        KerasParams(keras.layers.TimeDistributed, layer=keras.layers.Dense(3))
    with pytest.raises(TypeError, match=r'StackedRNNCells.cells is given a GRUCell object'):
        KerasParams(keras.layers.StackedRNNCells, cells=[keras.layers.GRUCell(3)])
    p = dense(units=3, kernel_initializer=KerasParams(Secretive, value=3.0))
    layer = p.Instantiate()
    layer.build((None, 2))
    assert np.all(layer.kernel == 3.0)


def test_a_text_introduces_no_layer_that_runs_code_or_reads_files():
    for name in ('TFSMLayer', 'TorchModuleWrapper', 'JaxLayer'):
        p = hyperparams.Params()
        p.Define('layer', None, '')
        with pytest.raises(ValueError, match='names nothing'):
            p.FromText(f'layer.cls : type/keras.layers/{name}')


def test_layer_with_params_of_its_own_is_refused():
    class Own(keras.layers.Layer):
        @classmethod
        def Params(cls):
            return hyperparams.InstantiableParams(cls)

    with pytest.raises(TypeError, match=r'Own has Params of its own; use Own.Params\(\)'):
        KerasParams(Own)
