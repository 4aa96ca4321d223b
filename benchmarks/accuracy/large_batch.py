"""Accuracy over the batch size: SGD with momentum against LARS, for equal numbers of epochs, on handwritten digits.

    python -m benchmarks.accuracy.large_batch

Each optimizer is tried with several learning rates for batch 32, scaled in proportion for larger batches. The learning
rate warms up for a fifth of the steps and then decays with power 2. Batch norm sees micro-batches of about 32 images,
whatever the batch.
"""

import functools
import statistics

import keras
from absl import app, flags

from benchmarks.support import common
from lingpipe import base_model_params, optimizers
from lingpipe.input import image_input
from lingpipe.layers import keras_params, resnet
from lingpipe.models import image_classifier
from lingpipe.optimizers import learning_rate_schedules
from lingpipe.training import evaluation, experiment, train_program

_BATCH_SIZES = flags.DEFINE_list(
    'batch_sizes', ['32', '128', '512', '1437'], 'Examples in a mini-batch; 1,437 is all of them.')
_SEEDS = flags.DEFINE_list('seeds', ['0', '1'], 'Values of train.random_seed, one training each.')
_EPOCHS = flags.DEFINE_integer('epochs', 40, 'Epochs of each training.', lower_bound=1)
_SGD_RATES = flags.DEFINE_list('sgd_rates', ['0.005', '0.02'], 'Learning rates of SGD for batch 32.')
_LARS_RATES = flags.DEFINE_list('lars_rates', ['0.25', '1'], 'Learning rates of LARS for batch 32.')
_DEPTH = flags.DEFINE_integer('depth', 10, 'Depth of the ResNet.')
_FILTERS = flags.DEFINE_integer('filters', 16, 'Filters of its first group.', lower_bound=1)

_NUM_EXAMPLES = 1437
_CHANCE = 10.0  # per cent of ten classes
_BASE_BATCH_SIZE = 32
_WEIGHT_DECAY = 1e-4
_BATCH_NORM_MOMENTUM = 0.5  # With 40 steps in all, a longer memory would still hold the statistics of the first ones.


class Experiment(base_model_params.SingleTaskModelParams):
    """One training.

    Args:
        optimizer: 'SGD' or 'LARS'.
        rate: its highest learning rate for batch 32.
        batch_size: examples in a mini-batch.
        seed: `train.random_seed`.
    """

    def __init__(self, optimizer, rate, batch_size, seed):
        self._optimizer, self._rate, self._batch_size, self._seed = optimizer, rate, batch_size, seed

    def Train(self):
        return image_input.ImageInput.Params().Set(
            dataset='digits', split='train', batch_size=self._batch_size, image_size=8, seed=self._seed,
            augmentation='digits')

    def Test(self):
        return self.Train().Set(split='test', batch_size=180)

    def Task(self):
        p = image_classifier.ImageClassifier.Params().Set(name='large_batch', label_smoothing=0.1)
        p.body.Set(
            num_partitions=1, num_micro_batches=max(1, round(self._batch_size / _BASE_BATCH_SIZE)), recompute='none',
            layers=resnet.resnet_layers(
                _DEPTH.value, num_classes=10, filters=_FILTERS.value, for_small_images=True,
                batch_norm_momentum=_BATCH_NORM_MOMENTUM))
        max_steps = num_steps(self._batch_size)
        p.train.Set(max_steps=max_steps, random_seed=self._seed, lr_schedule=keras_params.KerasParams(
            optimizers.WarmupPolynomialDecay, warmup_steps=max_steps / 5, max_steps=max_steps,
            initial_learning_rate=learning_rate_schedules.linearly_scaled(
                self._rate, self._batch_size, _BASE_BATCH_SIZE)))
        self._SetOptimizer(p.train)
        return p

    def _SetOptimizer(self, train):
        """SGD leaves the weight decay to the loss."""
        if self._optimizer == 'SGD':
            train.Set(optimizer=keras_params.KerasParams(keras.optimizers.SGD, momentum=0.9, nesterov=True),
                      l2_regularizer_weight=_WEIGHT_DECAY)
        else:
            train.optimizer = keras_params.KerasParams(optimizers.LARS, momentum=0.9, weight_decay=_WEIGHT_DECAY)


def num_steps(batch_size):
    """Return how many steps make the epochs of a training."""
    return max(1, round(_EPOCHS.value * _NUM_EXAMPLES / batch_size))


def accuracy(described):
    """Train once.

    Args:
        described: `Experiment`.

    Returns:
        Per cent of the held-out digits that are read; chance where numbers stopped being finite.
    """
    params, train = described.Model(), described.Train().Instantiate()
    task = experiment.build_task(params, train.input_spec)
    program = train_program.TrainProgram(task, params.train)
    try:
        program.run(program.iterate(functools.partial(train.training_dataset, 0)), params.train.max_steps)
    except Exception as error:
        if train_program.NON_FINITE not in str(error):
            raise
        return _CHANCE
    return 100 * evaluation.Evaluator(task).run(described.Test().Instantiate().evaluation_dataset())['accuracy']


def mean_and_range(values):
    """Return '98.52 (98.06 to 98.89)', or the only value."""
    mean = f'{statistics.fmean(values):.2f}'
    return mean if len(values) == 1 else f'{mean} ({min(values):.2f} to {max(values):.2f})'


def main(unused_argv):
    batch_sizes, seeds = (list(map(int, flag.value)) for flag in (_BATCH_SIZES, _SEEDS))
    pairs = [(optimizer, float(rate)) for optimizer, flag in (('SGD', _SGD_RATES), ('LARS', _LARS_RATES))
             for rate in flag.value]
    names = [f'{optimizer}, {rate:g}' for optimizer, rate in pairs]
    found = [[[accuracy(Experiment(*pair, batch_size, seed)) for seed in seeds] for pair in pairs]
             for batch_size in batch_sizes]
    common.report(
        common.Table(['batch', 'steps', *names], [
            [batch_size, num_steps(batch_size), *map(mean_and_range, row)]
            for batch_size, row in zip(batch_sizes, found)]),
        f'Accuracy on held-out digits, %, with the rate for batch {_BASE_BATCH_SIZE}; {_EPOCHS.value} epochs, '
        f'{len(seeds)} seeds; ResNet-{_DEPTH.value} with {_FILTERS.value} filters in its first group.')


if __name__ == '__main__':
    app.run(main)
