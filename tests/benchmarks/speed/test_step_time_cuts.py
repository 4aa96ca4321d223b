import keras
import tensorflow as tf

from lingpipe import schedules
from lingpipe.layers import keras_params
from lingpipe.pipeline import layer_sources
from lingpipe.planner import accelerators, resolution


def test_the_cut_for_the_step_is_never_slower(load_benchmark):
    layers = [keras_params.KerasParams(keras.layers.Dense, units=512, use_bias=False)] * 9
    stack = resolution.LayerStack(layer_sources.LayersOfParams(layers), tf.TensorSpec([4096, 512]), [1024, 2048])
    for count in (2, 4):
        even, best = load_benchmark('speed.step_time_cuts').compare(
            stack, accelerators.find('v100'), schedules.make_schedule('1f1b', 4, count))
        assert best.step_time <= even.step_time


def test_vgg_19_has_19_layers_with_weights(load_benchmark):
    layers = load_benchmark('speed.step_time_cuts').vgg_layers()
    assert sum(layer.cls in (keras.layers.Conv2D, keras.layers.Dense) for layer in layers) == 19
