"""What workers cost in accuracy: synchronous against asynchronous updates after equally many examples.

    python -m benchmarks.accuracy.stale_gradients --model=digits --picture=docs/images/stale_gradients_digits.png
    python -m benchmarks.accuracy.stale_gradients --model=pydoc --picture=docs/images/stale_gradients_pydoc.png

::

    sync    one step   batch of n * B examples, gradients of all workers          E / (n * B) steps
    async   one step   batch of B examples, one worker's gradients, often stale    E / B steps

Every training run sees E examples, with a parameter server and n workers as processes of this machine. "scaled" runs
multiply the learning rate by n: the linear scaling rule (Goyal et al., arXiv 1706.02677, section 2.1), meant for
batches that grow with n. Each run has its own processes, one run after the other.
"""

import math
import pathlib
from typing import NamedTuple

import keras
import numpy as np
from absl import app, flags

from benchmarks.scaling import cluster_servers
from benchmarks.support import common, line_chart
from lingpipe import base_model_params, optimizers
from lingpipe.devices import device_kinds
from lingpipe.input import image_input, text_input
from lingpipe.layers import keras_params, transformer
from lingpipe.models import image_classifier, language_model
from lingpipe.placements import parameter_servers
from lingpipe.training import evaluation, train_program

_MODEL = flags.DEFINE_enum('model', 'digits', ['digits', 'pydoc'], 'What learns.')
_WORKERS = flags.DEFINE_list('num_workers', ['1', '2', '4', '8'], 'Numbers of workers n.')
_NUM_EXAMPLES = flags.DEFINE_integer('num_examples', 0, "Examples E of a run; 0: the model's own number.")
_SEEDS = flags.DEFINE_list('seeds', ['0'], 'Values of train.random_seed, one run each.')
_PICTURE = flags.DEFINE_string('picture', None, 'PNG file to draw the results into.')
_DIVERGED = float('nan')


class Run(NamedTuple):
    """What one training run is: `update` is 'sync' or 'async', `is_scaled` says whether the rate grows with n."""

    update: str
    num_workers: int
    is_scaled: bool
    seed: int


class _Experiment(base_model_params.SingleTaskModelParams):
    """One training run of `Run`."""

    BATCH_SIZE = 16
    NUM_EXAMPLES = 0
    LEARNING_RATE = 0.0
    METRIC, BETTER = '', ''

    def __init__(self, run):
        self.run = run
        self.batch_size = self.BATCH_SIZE * (run.num_workers if run.update == parameter_servers.SYNCHRONOUS else 1)

    def _SetTraining(self, train, optimizer):
        max_steps = (_NUM_EXAMPLES.value or self.NUM_EXAMPLES) // self.batch_size
        factor = self.run.num_workers if self.run.is_scaled else 1
        train.Set(max_steps=max_steps, random_seed=self.run.seed, optimizer=optimizer, lr_schedule=
            keras_params.KerasParams(optimizers.WarmupPolynomialDecay, warmup_steps=max_steps / 10, max_steps=max_steps,
                                     initial_learning_rate=factor * self.LEARNING_RATE))


class Digits(_Experiment):
    """Two convolutions on the handwritten digits, by gradient descent."""

    NUM_EXAMPLES = 30 * 1437
    LEARNING_RATE = 0.1
    METRIC, BETTER = 'accuracy', 'accuracy on held-out digits, % (higher is better)'

    def Train(self):
        return image_input.ImageInput.Params().Set(
            dataset='digits', split='train', batch_size=self.batch_size, image_size=8, seed=self.run.seed)

    def Test(self):
        return self.Train().Set(split='test', batch_size=180)

    def Task(self):
        p = image_classifier.ImageClassifier.Params().Set(name='digits')
        p.body.Set(num_partitions=1, num_micro_batches=1, recompute='none', layers=[
            keras_params.KerasParams(keras.layers.Conv2D, filters=16, kernel_size=3, activation='relu'),
            keras_params.KerasParams(keras.layers.Conv2D, filters=32, kernel_size=3, activation='relu'),
            keras_params.KerasParams(keras.layers.Flatten), keras_params.KerasParams(keras.layers.Dense, units=10)])
        self._SetTraining(p.train, keras_params.KerasParams(keras.optimizers.SGD))
        return p

    @staticmethod
    def result(metrics):
        """Returns per cent."""
        return 100 * metrics['accuracy']


class Pydoc(_Experiment):
    """A byte-level Transformer on the Python interpreter's help texts, by Adam."""

    BATCH_SIZE = 4
    NUM_EXAMPLES = 8_000
    LEARNING_RATE = 1e-3
    METRIC, BETTER = 'bits_per_byte', 'bits per byte of held-out texts (lower is better)'

    def Train(self):
        return text_input.TextInput.Params().Set(
            dataset='pydoc_topics', split='train', batch_size=self.batch_size, sequence_length=128, seed=self.run.seed)

    def Test(self):
        return self.Train().Set(split='dev', batch_size=32)

    def Task(self):
        p = language_model.LanguageModel.Params().Set(name='pydoc')
        p.body.Set(num_partitions=1, num_micro_batches=1, recompute='none', layers=transformer.transformer_lm_layers(
            num_layers=2, vocab_size=256, model_dim=64, hidden_dim=256, num_heads=4, positions='rotary'))
        p.train.clip_gradient_norm_to_value = 1.0
        self._SetTraining(p.train, keras_params.KerasParams(keras.optimizers.Adam, beta_2=0.98))
        return p

    @staticmethod
    def result(metrics):
        """Returns bits per byte."""
        return metrics['bits_per_byte']


_MODELS = {'digits': Digits, 'pydoc': Pydoc}


def train(*fields):
    """Runs in a process of its own.

    Args:
        fields: those of `Run`.

    Yields:
        The result on held-out examples, not a number if training diverged, and the mean staleness.
    """
    run = Run(*fields)
    described = _MODELS[_MODEL.value](run)
    device_kinds.use_virtual_devices(1)
    with cluster_servers.running(run.num_workers, 1, [{}] * run.num_workers) as config:
        yield _trained(described, parameter_servers.ParameterServers(config, run.update))


def _trained(described, servers):
    program, task, data = cluster_servers.program_of(described, servers)
    try:
        staleness = _mean_staleness(program, program.open_input(data, 0), described.Model().train.max_steps)
    except Exception as error:
        if train_program.NON_FINITE not in str(error):
            raise
        return _DIVERGED, _DIVERGED
    held_out = described.Test().Instantiate().evaluation_dataset()
    return described.result(evaluation.Evaluator(task, placement=servers).run(held_out)), staleness


def _mean_staleness(program, iterator, num_steps):
    staleness = []
    while len(staleness) < num_steps:
        metrics = program.run(iterator, min(20, num_steps - len(staleness))).metrics
        staleness += np.ravel(metrics.get('staleness', np.zeros_like(metrics['loss']))).tolist()
    return float(np.mean(staleness))


def _measured(update, num_workers, is_scaled):
    """Returns the mean result and the mean staleness over the seeds."""
    found = []
    for seed in map(int, _SEEDS.value):
        with common.Process(train, update, num_workers, is_scaled, seed) as process:
            found.append(process.next())
    return tuple(map(float, np.mean(found, 0)))


def main(unused_argv):
    counts = list(map(int, _WORKERS.value))
    names = {(update, is_scaled): f'{update}, scaled' if is_scaled else update
             for update in parameter_servers.MODES for is_scaled in (False, True)}
    found = {}
    for (update, is_scaled), name in names.items():
        for count in counts:
            same = found.get((names[update, False], count))
            found[name, count] = same if is_scaled and count == 1 else _measured(update, count, is_scaled)
    if _PICTURE.value:
        lines = {name: [found[name, count][0] for count in counts] for name in names.values()}
        pathlib.Path(_PICTURE.value).write_bytes(line_chart.png(
            lines, counts, x_title='workers', y_title=_MODELS[_MODEL.value].BETTER))
    rows = [[name, count, _text(result), _text(staleness)] for (name, count), (result, staleness) in found.items()]
    common.report(
        common.markdown_table(['training', 'workers', _MODELS[_MODEL.value].METRIC, 'mean staleness'], rows),
        f'{_MODEL.value}: {_MODELS[_MODEL.value].BETTER}, after {_num_examples():,} examples; mean of '
        f'{len(_SEEDS.value)} seeds.')


def _text(number):
    return 'diverged' if math.isnan(number) else f'{number:.2f}'


def _num_examples():
    return _NUM_EXAMPLES.value or _MODELS[_MODEL.value].NUM_EXAMPLES


if __name__ == '__main__':
    app.run(main)
