"""A new head on an old body: AmoebaNet is trained on the digits 0 to 4, then from that checkpoint on 5 to 9, in a
quarter of the steps.

    python -m benchmarks.accuracy.transfer --seeds=0,1,2

The same command line does it, with train.init_from_checkpoint_rules (docs/from_lingvo.md).
"""

import contextlib
import io
import statistics
import sys
import tempfile

from absl import app, flags, logging

from benchmarks.support import common
from lingpipe.devices import device_kinds
from lingpipe.input import digits_dataset
from lingpipe.layers import amoebanet
from lingpipe.training import trainer
from params import amoebanet as experiments

_SEEDS = flags.DEFINE_list('seeds', ['0', '1', '2'], 'Values of train.random_seed, one row each.')
_MAX_STEPS = flags.DEFINE_integer(
    'max_steps', 336, 'Steps from scratch; from the checkpoint a quarter of them.', lower_bound=4)
_PERCENT = flags.DEFINE_integer(
    'percent', 100, 'Part of the digits 5 to 9 to train on.', lower_bound=10, upper_bound=100)
_NUM_CLASSES = 5
_HEADER = ['seed', 'from scratch', 'from 0 to 4, a quarter of the steps', 'from scratch, a quarter of the steps']


class LowDigits(digits_dataset.Digits):
    """Builder of the digits 0 to 4."""

    name = 'low_digits'
    NUM_CLASSES = _NUM_CLASSES
    FIRST = 0

    def _generate_examples(self, images, labels, indices):
        own = indices[(labels[indices] - self.FIRST) // _NUM_CLASSES == 0]
        yield from super()._generate_examples(images, labels - self.FIRST, own)


class HighDigits(LowDigits):
    """Builder of the digits 5 to 9, whose labels are 0 to 4."""

    name = 'high_digits'
    FIRST = 5


class Experiment(experiments.AmoebaNetDDigits):
    """One training of the default model on half of the digits.

    Args:
        dataset: 'low_digits' or 'high_digits'.
        max_steps: number of steps.
        seed: `train.random_seed`.
        data_dir: folder of the data.
        rules: `train.init_from_checkpoint_rules`.
    """

    def __init__(self, dataset, max_steps, seed, data_dir, rules):
        self._dataset, self._max_steps, self._seed, self._data_dir, self._rules = dataset, max_steps, seed, data_dir, rules

    def _Input(self, split, augmentation):
        is_part = split == 'train' and self._dataset == 'high_digits'
        return super()._Input(split, augmentation).Set(
            dataset=self._dataset, data_dir=self._data_dir, split=f'train[:{_PERCENT.value}%]' if is_part else split)

    def Task(self):
        p = super().Task()
        p.body.layers = body_layers()
        warmup_steps = self._max_steps // 10
        p.train.lr_schedule.Set(warmup_steps=warmup_steps, decay_steps=self._max_steps - warmup_steps)
        p.train.Set(max_steps=self._max_steps, random_seed=self._seed, init_from_checkpoint_rules=self._rules)
        return p


def body_layers():
    """Returns the layers of the default model, for five classes."""
    return amoebanet.amoebanet_layers(
        'D', num_cells=3, reduction_size=32, num_classes=_NUM_CLASSES, use_auxiliary_head=False, dropout_rate=0.0,
        drop_path_final_keep_prob=1.0, batch_norm_momentum=0.9)


def accuracy(logdir, data_dir, dataset, max_steps, seed, rules=None):
    """Trains once.

    Args:
        logdir: folder of the training.
        data_dir: folder of the data.
        dataset: 'low_digits' or 'high_digits'.
        max_steps: number of steps.
        seed: `train.random_seed`.
        rules: `train.init_from_checkpoint_rules`; None: from scratch.

    Returns:
        Per cent of the held-out digits that are read.
    """
    experiment = Experiment(dataset, max_steps, seed, data_dir, rules or {})
    params = experiment.Model()
    params.Define('input', experiment.Train(), 'The input of Train.')
    with contextlib.redirect_stdout(io.StringIO()):
        results = trainer.Trainer(params, {'Test': experiment.Test()}, logdir).run()
    found = 100 * results['Test']['accuracy']
    print(f'seed {seed}, {dataset}, {max_steps} steps, {"from a checkpoint" if rules else "from scratch"}: {found:.2f} '
          '%', file=sys.stderr)
    return found


def row(seed):
    """Returns the accuracies on the digits 5 to 9 that the columns are for."""
    steps, quarter = _MAX_STEPS.value, _MAX_STEPS.value // 4
    with tempfile.TemporaryDirectory() as folder:
        accuracy(f'{folder}/low', folder, 'low_digits', steps, seed)
        rules = {f'{folder}/low/train/ckpt-{steps}': ([('(.*)', '%s')], ['head/'])}
        return [accuracy(f'{folder}/high', folder, 'high_digits', steps, seed),
                accuracy(f'{folder}/transferred', folder, 'high_digits', quarter, seed, rules),
                accuracy(f'{folder}/short', folder, 'high_digits', quarter, seed)]


def main(unused_argv):
    logging.set_verbosity(logging.WARNING)
    device_kinds.use_virtual_devices(experiments.AmoebaNetDDigits.NUM_PARTITIONS)
    rows = [(seed, *row(int(seed))) for seed in _SEEDS.value]
    rows.append(('mean', *map(statistics.fmean, list(zip(*rows))[1:])))
    common.report(
        common.markdown_table(_HEADER, [[seed, *(f'{value:.2f}' for value in values)] for seed, *values in rows]),
        f'Accuracy on held-out digits 5 to 9, %; {_MAX_STEPS.value} steps, and the quarter of them.')


if __name__ == '__main__':
    app.run(main)
