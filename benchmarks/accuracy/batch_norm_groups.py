"""Accuracy over the number of examples that batch norm sees: replicas of few examples each, that share statistics or do
not.

    python -m benchmarks.accuracy.batch_norm_groups --picture=docs/images/batch_norm_groups.png

All training runs have one global batch, one number of epochs and one learning rate; they read handwritten digits. Eight
replicas with an example count n each, and groups of g of them, let batch norm see n g examples at a time. Where eight
replicas of n do not make the batch, each works through several micro-batches of n.
"""

import pathlib
import statistics

import keras
from absl import app, flags

from benchmarks.accuracy import digits_accuracy
from benchmarks.support import common, line_chart
from lingpipe import base_model_params, optimizers
from lingpipe.devices import device_kinds
from lingpipe.input import image_input
from lingpipe.layers import keras_params, resnet
from lingpipe.models import image_classifier

_EXAMPLES = flags.DEFINE_list('examples', ['2', '4', '8'], 'Examples of a replica at a time.')
_GROUP_SIZES = flags.DEFINE_list('group_sizes', ['1', '2', '4', '8'],
    'Replicas that share the statistics of batch norm.')
_NUM_REPLICAS = flags.DEFINE_integer('num_replicas', 8, 'Replicas, each on a virtual device.', lower_bound=1)
_BATCH_SIZE = flags.DEFINE_integer('batch_size', 64, 'Examples in a mini-batch.', lower_bound=1)
_EPOCHS = flags.DEFINE_integer('epochs', 8, 'Epochs of each training.', lower_bound=1)
_SEEDS = flags.DEFINE_list('seeds', ['0', '1'], 'Values of train.random_seed, one training each.')
_RATE = flags.DEFINE_float('rate', 0.04, 'Highest learning rate.', lower_bound=0.0)
_DEPTH = flags.DEFINE_integer('depth', 10, 'Depth of the ResNet.')
_FILTERS = flags.DEFINE_integer('filters', 8, 'Filters of its first group.', lower_bound=1)
_PICTURE = flags.DEFINE_string('picture', None, 'PNG file to draw the accuracies into.')

_NUM_EXAMPLES = 1437


class Experiment(base_model_params.SingleTaskModelParams):
    """One training.

    Args:
        examples: of a replica at a time.
        group_size: replicas that share the statistics of batch norm.
        seed: `train.random_seed`.
    """

    def __init__(self, examples, group_size, seed):
        self._examples, self._group_size, self._seed = examples, group_size, seed

    def Train(self):
        return image_input.ImageInput.Params().Set(
            dataset='digits', split='train', batch_size=_BATCH_SIZE.value, image_size=8, seed=self._seed,
            augmentation='digits')

    def Test(self):
        return self.Train().Set(split='test', batch_size=180)

    def Task(self):
        p = image_classifier.ImageClassifier.Params().Set(name='batch_norm_groups', label_smoothing=0.1)
        p.body.Set(
            num_partitions=1, num_replicas=_NUM_REPLICAS.value, num_micro_batches=num_micro_batches(self._examples),
            recompute='none',
            layers=resnet.resnet_layers(
                _DEPTH.value, num_classes=10, filters=_FILTERS.value, for_small_images=True,
                batch_norm_group_size=self._group_size))
        p.train.Set(
            max_steps=num_steps(), random_seed=self._seed, l2_regularizer_weight=1e-4,
            optimizer=keras_params.KerasParams(keras.optimizers.SGD, momentum=0.9, nesterov=True),
            lr_schedule=keras_params.KerasParams(
                optimizers.WarmupPolynomialDecay, warmup_steps=num_steps() / 5, max_steps=num_steps(),
                initial_learning_rate=_RATE.value))
        return p


def num_micro_batches(examples):
    """Returns how many micro-batches of a number of examples a replica works through in a step.

    Raises:
        ValueError: they do not make the batch.
    """
    count, rest = divmod(_BATCH_SIZE.value, _NUM_REPLICAS.value * examples)
    if rest or not count:
        raise ValueError(f'--examples has {examples}, of which {_NUM_REPLICAS.value} replicas cannot make a batch of '
                         f'{_BATCH_SIZE.value}. Make --batch_size a multiple of {_NUM_REPLICAS.value * examples}.')
    return count


def num_steps():
    """Returns how many steps make the epochs of a training."""
    return max(1, round(_EPOCHS.value * _NUM_EXAMPLES / _BATCH_SIZE.value))


def _draw(group_sizes, found):
    lines = {f'{examples} a replica': list(map(statistics.fmean, row)) for examples, row in found.items()}
    pathlib.Path(_PICTURE.value).write_bytes(line_chart.png(
        lines, group_sizes, 'replicas that share statistics', 'accuracy on held-out digits, %'))


def main(unused_argv):
    device_kinds.use_virtual_devices(_NUM_REPLICAS.value)
    examples, group_sizes, seeds = (list(map(int, flag.value)) for flag in (_EXAMPLES, _GROUP_SIZES, _SEEDS))
    found = {count: [
        [digits_accuracy.accuracy(Experiment(count, size, seed)) for seed in seeds] for size in group_sizes]
             for count in examples}
    if _PICTURE.value:
        _draw(group_sizes, found)
    common.report(
        common.markdown_table(['examples a replica', *(f'groups of {size}' for size in group_sizes)],
                              [[count, *map(digits_accuracy.mean_and_range, row)] for count, row in found.items()]),
        f'Accuracy on held-out digits, %; {_NUM_REPLICAS.value} replicas, batch {_BATCH_SIZE.value}, {_EPOCHS.value} '
        f'epochs of {num_steps()} steps in all, {len(seeds)} seeds; ResNet-{_DEPTH.value} with {_FILTERS.value} '
        'filters in its first group.')


if __name__ == '__main__':
    app.run(main)
