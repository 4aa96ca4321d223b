"""The default translation model from the command line: exact match on unseen numbers, seconds, and seconds of the
processor.

    python -m benchmarks.accuracy.translation --seeds=0,1,2
"""

import re
import tempfile

from absl import app, flags

from benchmarks.support import common

_SEEDS = flags.DEFINE_list('seeds', ['0'], 'Values of train.random_seed, one training each.')
_OVERRIDE = flags.DEFINE_string('model_params_override', '', 'Further changes, handed on to run.py.')
_METRICS = ('accuracy', 'exact_match_greedy', 'exact_match_beam')


def train(seed):
    """Trains once in a process of its own, which evaluates at its end.

    Args:
        seed: `train.random_seed`.

    Returns:
        List of steps, seconds, seconds of the processor in user mode, and the _METRICS of the test numbers in per cent.
    """
    with tempfile.TemporaryDirectory() as logdir:
        finished = common.run_command(
            'params.transformer_nmt', 'train', logdir,
            f'--model_params_override=train.random_seed={seed}; {_OVERRIDE.value}')
    steps, line = re.search(r'Final Test after (\d+) steps: (.*)', finished.printed).groups()
    figures = [re.search(rf'\b{name} ([\d.]+) %', line).group(1) for name in _METRICS]
    return [steps, f'{finished.seconds:.0f}', f'{finished.user_seconds:.0f}', *figures]


def main(unused_argv):
    rows = [[seed, *train(seed)] for seed in _SEEDS.value]
    common.report(common.markdown_table(
        ['seed', 'steps', 'seconds', 'user seconds', 'tokens %', 'exact match, greedy %', 'exact match, beam %'], rows))


if __name__ == '__main__':
    app.run(main)
