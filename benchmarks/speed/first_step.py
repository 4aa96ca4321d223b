"""What the time from the command to the end of the first training step is spent on.

    python -m benchmarks.speed.first_step --runs=3
    python -m benchmarks.speed.first_step --model=params.transformer_lm

Each run is a process of its own, with a log directory of its own. Processor seconds are those of all threads of the
process; they disturb less than seconds of the clock where other programs are at work. Each row is the median of the runs.
"""

import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from absl import app, flags

from benchmarks.speed import first_step_process
from benchmarks.support import common

_MODEL = flags.DEFINE_string('model', 'params.amoebanet', "Value of run.py's --model.")
_OVERRIDE = flags.DEFINE_string('model_params_override', '', 'Changes of params, handed on to run.py.')
_RUNS = flags.DEFINE_integer('runs', 3, 'Number of processes; the medians count.', lower_bound=1)


def measure():
    """Runs the command up to the end of its first step.

    Returns:
        Dictionary from the name of a phase to its (seconds, processor seconds), and the loss of the step.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, 'phases.json')
        words = [f'--model={_MODEL.value}', '--mode=train', f'--logdir={folder}/logs']
        if _OVERRIDE.value:
            words.append(f'--model_params_override={_OVERRIDE.value}')
        command = [sys.executable, '-m', first_step_process.__name__, str(time.time()), str(path), *words]
        subprocess.run(command, cwd=common.ROOT, check=True, stdout=subprocess.DEVNULL)
        result = json.loads(path.read_text())
    return result['phases'], result['loss']


def main(unused_argv):
    runs, losses = zip(*[measure() for _ in range(_RUNS.value)])
    rows = [[phase, *(statistics.median(run[phase][index] for run in runs) for index in (0, 1))]
            for phase in first_step_process.PHASES]
    rows.append(['sum', *(statistics.median(sum(seconds[index] for seconds in run.values()) for run in runs)
                          for index in (0, 1))])
    common.report(
        common.markdown_table(['part', 'seconds', 'processor seconds'],
                              [[name, f'{wall:.2f}', f'{processor:.2f}'] for name, wall, processor in rows]),
        'Loss of the step: ' + ', '.join(sorted({repr(loss) for loss in losses})) + '.')


if __name__ == '__main__':
    app.run(main)
