import keras
import tensorflow as tf

from lingpipe.layers import keras_params
from lingpipe.partition import layer_kernels
from lingpipe.pipeline import layer_sources
from tests.plain_stack import Counts

layers = keras.layers


def test_units_run_the_kernels_of_their_layers():
    dense = [layers.Dense(16, activation='gelu', trainable=trainable) for trainable in (False, True, True)]
    model = keras.Sequential([keras.Input([16]), *dense])
    specs = tf.TensorSpec([8, 16])
    alone, = layer_kernels.layer_kernels([keras_params.KerasParams(layers.Dense, units=16, activation='gelu')], specs)
    frozen, *trained = layer_sources.LayersOfModel(model).kernels(specs)
    assert trained == [alone, alone]
    assert (len(frozen.forward), frozen.backward, frozen.recomputed) == (len(alone.forward), [], [])


def test_measuring_leaves_a_variable_of_tensorflow_as_it_was():
    counts = Counts()
    source = layer_sources.LayersOfModel(keras.Sequential([keras.Input([4]), keras.layers.Dense(3), counts]))
    before = int(counts.count)
    specs = tf.TensorSpec([2, 4], tf.float32)
    source.times(specs, 'CPU:0', None, source.analyses(specs))
    assert int(counts.count) == before
