"""Shows when the cut for the shortest step beats the most even one: where there are few micro-batches.

    python -m benchmarks.speed.step_time_cuts --num_micro_batches=4,8,16

By the planner, on the least times that an accelerator allows; nothing runs.
"""

import keras
import tensorflow as tf
from absl import app, flags

from benchmarks.support import common
from lingpipe import schedules
from lingpipe.layers import amoebanet, transformer
from lingpipe.layers.keras_params import KerasParams
from lingpipe.pipeline import layer_sources
from lingpipe.planner import accelerators, plans, resolution

_NUM_PARTITIONS = flags.DEFINE_integer('num_partitions', 4, 'Partitions K.', lower_bound=2)
_COUNTS = flags.DEFINE_list('num_micro_batches', ['4', '8', '16'], 'Micro-batches M; each gives a row.')
_SCHEDULE = flags.DEFINE_string('schedule', '1f1b', "Value of GPipeLayer's field.")
_ACCELERATOR = flags.DEFINE_string('accelerator', 'v3', 'Accelerator to plan for.')
_NUM_SLOTS = 2
_VGG_19 = [2, 2, 4, 4, 4]  # convolutions of each size; each size ends in a pool


def transformer_layers():
    """Returns the layers of a language model of 24 blocks with an embedding and a softmax."""
    return transformer.transformer_lm_layers(
        num_layers=24, vocab_size=32_000, model_dim=1024, hidden_dim=4096, num_heads=16)


def vgg_layers():
    """Returns the layers of VGG-19 (arXiv 1409.1556, table 1, column E)."""
    layers = []
    for size, count in enumerate(_VGG_19):
        layers += [KerasParams(keras.layers.Conv2D, filters=min(64 << size, 512), kernel_size=3, padding='same',
                               activation='relu') for _ in range(count)]
        layers.append(KerasParams(keras.layers.MaxPooling2D))
    layers.append(KerasParams(keras.layers.Flatten))
    return layers + [KerasParams(keras.layers.Dense, units=units) for units in (4096, 4096, 1000)]


MODELS = {
    'Transformer-24': (transformer_layers, tf.TensorSpec([64, 1024], tf.int32)),
    'VGG-19': (vgg_layers, tf.TensorSpec([128, 224, 224, 3])),
    'AmoebaNet-D(36, 256)': (
        lambda: amoebanet.amoebanet_layers('D', 36, 256, num_classes=1000), tf.TensorSpec([128, 224, 224, 3])),
}


def compare(stack, accelerator, schedule):
    """Returns the plan with the most even times of partitions, and the one with the shortest step.

    Args:
        stack: `LayerStack`.
        accelerator: `Accelerator`; its memory does not limit the cut.
        schedule: `Schedule`.
    """
    setting = plans.Setting(stack, accelerator, None, _NUM_SLOTS)
    return [plans.make_plan(setting, schedule, 'none', partition_by) for partition_by in ('time', 'step_time')]


def _rows():
    counts, accelerator = list(map(int, _COUNTS.value)), accelerators.find(_ACCELERATOR.value)
    for name, (make_layers, spec) in MODELS.items():
        sizes = [-(-spec.shape[0] // count) for count in counts]
        stack = resolution.LayerStack(layer_sources.LayersOfParams(make_layers()), spec, sizes, accelerator.tensor_size)
        for count in counts:
            schedule = schedules.make_schedule(_SCHEDULE.value, _NUM_PARTITIONS.value, count)
            even, best = compare(stack, accelerator, schedule)
            yield [name, count, f'{1e3 * even.step_time:.1f}', f'{1e3 * best.step_time:.1f}',
                   f'{100 * (even.step_time / best.step_time - 1):.1f}', _layers(even), _layers(best)]


def _layers(plan):
    return ' '.join(str(len(part.layer_names)) for part in plan.partitions)


def main(unused_argv):
    header = ['model', 'M', 'even: step ms', 'best: step ms', 'even slower by %', 'even: layers', 'best: layers']
    common.report(
        common.markdown_table(header, list(_rows())),
        f"K={_NUM_PARTITIONS.value}, schedule={_SCHEDULE.value}, recompute='none', accelerator {_ACCELERATOR.value}.")


if __name__ == '__main__':
    app.run(main)
