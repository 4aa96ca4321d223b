"""Language models from the command line: seconds, bits per byte on held-out text, and n-gram models beside them.

    python -m benchmarks.accuracy.language_model --seeds=0
    python -m benchmarks.accuracy.language_model --models=params.transformer_lm,params.keras_hub

User seconds count the work of all cores, so they tell the cost where others use the machine too.
"""

import re
import tempfile
import textwrap
from typing import NamedTuple

import numpy as np
from absl import app, flags

from benchmarks.support import common
from lingpipe import model_registry
from lingpipe.models import language_model

_BYTE_MODEL = 'params.transformer_lm'
_PROMPT = 'The "for" statement'
_MODELS = flags.DEFINE_list('models', [_BYTE_MODEL], 'Values of --model.')
_SEEDS = flags.DEFINE_list('seeds', ['0'], 'Values of train.random_seed, one training each.')
_ORDERS = flags.DEFINE_list('orders', ['4', '5', '6'], 'Orders of the n-gram models.')
_OVERRIDE = flags.DEFINE_string('model_params_override', '', 'Further changes, handed on to run.py.')


class Training(NamedTuple):
    """What a training reports.

    Attributes:
        first_step: seconds to the first step.
        seconds: seconds in all.
        user_seconds: seconds of work in all, over all cores.
        dev: bits per byte on Dev.
        test: bits per byte on Test.
        text: what the trained model wrote.
    """

    first_step: float
    seconds: float
    user_seconds: float
    dev: float
    test: float
    text: str


def train(model, seed):
    """Trains once in a process of its own, then lets the model write in another one; returns a `Training`."""
    with tempfile.TemporaryDirectory() as logdir:
        finished = common.run_command(
            model, 'train', logdir, f'--model_params_override=train.random_seed={seed}; {_OVERRIDE.value}')
        text = common.run_command(model, 'generate', logdir, f'--prompt={_PROMPT}').printed
    first, dev, test = (float(re.search(pattern, finished.logged).group(1)) for pattern in (
        r'First step after ([\d.]+) s', r'Final Dev .*bits_per_byte ([\d.]+)', r'Final Test .*bits_per_byte ([\d.]+)'))
    return Training(first, finished.seconds, finished.user_seconds, dev, test, text)


def n_gram_rows():
    """Returns a row for each order: a name, and bits per byte on Dev and Test of counts of the training text's bytes."""
    experiment = model_registry.GetClass(_BYTE_MODEL)()
    train_input, *held_out = (experiment.GetDatasetParams(name).Instantiate() for name in ('Train', 'Dev', 'Test'))
    tokenizer = train_input.tokenizer
    rows = []
    for order in map(int, _ORDERS.value):
        model = language_model.NGramModel(train_input.tokens, order, tokenizer.vocab_size)
        bits = [model.bits(np.concatenate([[tokenizer.end_id], data.tokens]))[1:].mean() for data in held_out]
        rows.append([f'{order}-gram', '', '', '', *(f'{value:.3f}' for value in bits)])
    return rows


def main(unused_argv):
    trainings = {(model, seed): train(model, seed) for model in _MODELS.value for seed in _SEEDS.value}
    rows = [[f'{model}, seed {seed}', f'{result.first_step:.1f}', f'{result.seconds:.0f}', f'{result.user_seconds:.0f}',
             f'{result.dev:.3f}', f'{result.test:.3f}'] for (model, seed), result in trainings.items()]
    table = common.markdown_table(
        ['model', 's to first step', 's in all', 'user s', 'bits per byte, Dev', 'bits per byte, Test'],
        rows + n_gram_rows())
    texts = [f'{model} after {_PROMPT!r}:\n\n' + textwrap.indent(result.text.rstrip(), '    ')
             for (model, _), result in trainings.items()]
    common.report(table, *texts)


if __name__ == '__main__':
    app.run(main)
