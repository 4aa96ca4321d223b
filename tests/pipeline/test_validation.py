import keras
import pytest

from lingpipe.layers.keras_params import KerasParams
from lingpipe.pipeline import gpipe_layer

LAYERS = [KerasParams(keras.layers.Dense, units=2) for _ in range(3)]


class Nameless(keras.layers.Layer):
    def __init__(self):
        super().__init__()


def instantiate(**fields):
    return gpipe_layer.GPipeLayer.Params().Set(**{'layers': LAYERS, **fields}).Instantiate()


@pytest.mark.parametrize('fields, message', [
    ({'layers': []}, r'layers=\[\] .* list of layer params'),
    ({'layers': [None]}, r'layers\[0\]=None is not the Params of'),
    ({'layers': [params.Copy().Set(name='twin') for params in LAYERS]}, r"more than one layer named \['twin'\].*Rename one"),
    ({'layers': [LAYERS[0], KerasParams(Nameless)]}, r'layers\[1\], a Nameless, takes no argument name.*\*\*kwargs'),
    ({'num_partitions': 0}, 'num_partitions=0 .* integer of 1 or more'),
    ({'num_replicas': 'auto'}, "num_replicas='auto' .* integer of 1 or more; lingpipe.plan finds one"),
    ({'num_partitions': 4}, r'num_partitions=4 .* is 4 stages for 3 layers.*to 3 or less'),
    ({'schedule': [[f'{stage}{kind}0' for kind in 'FB' for stage in range(4)[::1 if kind == 'F' else -1]]]},
     r"schedule='own' is 4 stages for 3 layers"),
    ({'schedule': 'gpype'}, r"schedule='gpype' .*'gpipe'.*mean gpipe"),
    ({'recompute': 'stages'}, r"recompute='stages' .* mean stage.*one of \['auto', 'none', 'selective', 'stage', 'layer'\]"),
    ({'partition_by': 'flop'}, r"partition_by='flop' .*mean flops.* or a list of end indices"),
    ({'partition_by': [1, 2], 'num_partitions': 2}, r'partition_by=\[1, 2\] .*3 layers.*2 ascending end indices.*is 3'),
    ({'memory_limit': '16GB'}, "memory_limit='16GB' .* as 16e9"),
    ({'dtype_policy': 'bfloat'}, "dtype_policy='bfloat' is unknown; did you mean .*mixed_bfloat16"),
    ({'num_optimizer_slots': -1}, 'num_optimizer_slots=-1 .* 2 for Adam'),
    ({'devices': 5}, 'devices=5 is not a list of names'),
    ({'devices': 'CPU:0'}, r"devices='CPU:0' is not a list of names. Set it to one, such as \['CPU:0'\]"),
    ({'devices': ['CPU:0'], 'num_partitions': 2}, r"devices=\['CPU:0'\] names 1 .*num_partitions=2.*one device for "
                                                  r"each"),
    ({'devices': ['CPU:0', 'CPU:99'], 'num_partitions': 2}, "devices has 'CPU:99', which this program does not see; "
                                                            ".*CPU:"),
])
def test_a_wrong_field_is_named_with_its_value_and_what_is_allowed(fields, message):
    with pytest.raises(ValueError, match=message):
        instantiate(**fields)


@pytest.mark.parametrize(
    'device', ['CPU:3', 'cpu:3', '/CPU:3', '/device:CPU:3', '/job:localhost/replica:0/task:0/device:CPU:3'])
def test_a_device_may_be_written_in_every_way_of_tensorflow(device):
    pipe = instantiate(devices=[device])
    pipe.build((None, 4))
    assert pipe.trainable_variables[0].value.device.endswith('CPU:3')


def test_what_needs_weights_says_that_there_are_none_yet():
    pipe = instantiate(name='trunk')
    with pytest.raises(ValueError, match=r"'trunk' has no weights yet. Call it on a batch, or build\(input_shape\)"):
        _ = pipe.partitions


@pytest.mark.parametrize('layer, num_micro_batches, message', [
    (keras.layers.Dropout(0.5, noise_shape=(8, 1), name='drop'), 1, r"'drop' has noise_shape=\(8, 1\), .*to None"),
    (keras.layers.AlphaDropout(0.5, noise_shape=(1, 4), name='drop'), 2, r"'drop' has noise_shape=\(1, 4\), .*to None"),
    (keras.layers.MixUp(name='mix'), 2, "'mix' mixes the examples of a batch, .*or put MixUp into the input")])
def test_layers_that_use_the_whole_batch_in_training_are_refused(layer, num_micro_batches, message):
    with pytest.raises(ValueError, match=message):
        gpipe_layer.GPipeLayer(layers=[layer], num_partitions=1, num_micro_batches=num_micro_batches).build((None, 4))
