"""A stack of dense layers whose sizes can be worked out by hand, for the tests of the planner."""

import keras
import tensorflow as tf

from lingpipe import layers
from lingpipe.partition import accelerators
from lingpipe.pipeline import gpipe_layer, layer_sources
from lingpipe.planner import plans, resolution

WIDTH, BATCH = 64, 32
WEIGHTS = 4 * (WIDTH * WIDTH + WIDTH)
ROW = 4 * WIDTH


def dense(num_layers):
    return [layers.KerasParams(keras.layers.Dense, units=WIDTH) for _ in range(num_layers)]


def body(num_layers=8, **fields):
    return gpipe_layer.GPipeLayer.Params().Set(name='body', layers=dense(num_layers), **fields)


def specs():
    return tf.TensorSpec([BATCH, WIDTH], tf.float32)


def setting(num_layers=8, memory_limit=None, num_slots=2, sizes=(1, BATCH), accelerator=accelerators.CPU):
    return plans.Setting(
        resolution.LayerStack(layer_sources.LayersOfParams(dense(num_layers)), specs(), list(sizes)), accelerator,
        memory_limit, num_slots)
