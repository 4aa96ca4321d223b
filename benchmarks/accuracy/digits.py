"""A model of digits from the command line: seconds to the first step, seconds in all, accuracy on held-out digits.

    python -m benchmarks.accuracy.digits --seeds=0,1,2
    python -m benchmarks.accuracy.digits --model=params.resnet50
"""

import re
import tempfile

from absl import app, flags

from benchmarks.support import common

_MODEL = flags.DEFINE_string('model', 'params.amoebanet', "Value of run.py's --model.")
_SEEDS = flags.DEFINE_list('seeds', ['0', '1', '2'], 'Values of train.random_seed, one training each.')
_OVERRIDE = flags.DEFINE_string('model_params_override', '', 'Further changes, handed on to run.py.')


def train(seed):
    """Trains once in a process of its own.

    Args:
        seed: `train.random_seed`.

    Returns:
        Tuple of seconds to the first step, seconds in all, and accuracy in per cent.
    """
    with tempfile.TemporaryDirectory() as logdir:
        finished = common.run_command(
            _MODEL.value, 'train', logdir, f'--model_params_override=train.random_seed={seed}; {_OVERRIDE.value}')
    first, accuracy = (float(re.search(pattern, finished.logged).group(1)) for pattern in (
        r'First step after ([\d.]+) s', r'Final Test .*accuracy ([\d.]+) %'))
    return first, finished.seconds, accuracy


def main(unused_argv):
    rows = [(seed, *train(seed)) for seed in _SEEDS.value]
    mean = [sum(row[column] for row in rows) / len(rows) for column in (1, 2, 3)]
    rows.append(('mean', *mean))
    common.report(common.markdown_table(
        ['seed', 's to first step', 's in all', 'accuracy %'],
        [[row[0], *(f'{value:.2f}' for value in row[1:])] for row in rows]))


if __name__ == '__main__':
    app.run(main)
