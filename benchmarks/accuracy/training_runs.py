"""Models trained by the command, as users train them: seconds to the first step and in all, and what is learned.

    python -m benchmarks.accuracy.training_runs --models=params.amoebanet,params.resnet50
    python -m benchmarks.accuracy.training_runs --models=params.transformer_lm,params.keras_hub,params.transformer_nmt
    python -m benchmarks.accuracy.training_runs --model_params_override='task.dtype_policy=float32' \\
        --model_params_override='task.dtype_policy=mixed_bfloat16'

Each model has a row for each --model_params_override, such as a seed, a precision, or fewer steps. User seconds are
summed over cores, so they show the cost on a shared machine.
"""

import re
import resource
import subprocess
import sys
import tempfile
import time

from absl import app, flags

from benchmarks.support import common

_MODELS = flags.DEFINE_list('models', ['params.amoebanet'], "Values of the command's --model.")
_OVERRIDES = flags.DEFINE_multi_string(
    'model_params_override', [''], "Values of the command's flag of this name; a training run of each model for each.")
_HEADER = ['model', 'changes', 's to first step', 's in all', 'user s', 'examples/s', 'final Test']


def train(model, override):
    """Train once in a process of its own.

    Args:
        model: value of --model.
        override: value of --model_params_override.

    Returns:
        List of the cells of a row behind its model and its changes.

    Raises:
        RuntimeError: the command failed; the message ends with what it wrote.
    """
    with tempfile.TemporaryDirectory() as logdir:
        command = [sys.executable, str(common.ROOT / 'run.py'), '--mode=train', f'--model={model}',
                   f'--logdir={logdir}', f'--model_params_override={override}']
        used, started = _user_seconds(), time.monotonic()
        result = subprocess.run(command, capture_output=True, text=True)
        used, seconds = _user_seconds() - used, time.monotonic() - started
    logged = result.stdout + result.stderr
    if result.returncode:
        raise RuntimeError(f'{" ".join(command)} failed:\n{logged[-2000:]}')
    speeds = re.findall(r'([\d.,]+) \w+/s', logged)
    return [re.search(r'First step after ([\d.]+) s', logged)[1], f'{seconds:.0f}', f'{used:.0f}',
            speeds[-1] if speeds else '', re.search(r'Final Test after \d+ steps: (.*)', logged)[1]]


def _user_seconds():
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime


def main(unused_argv):
    rows = [[model, override, *train(model, override)] for model in _MODELS.value for override in _OVERRIDES.value]
    common.report(common.Table(_HEADER, rows))


if __name__ == '__main__':
    app.run(main)
