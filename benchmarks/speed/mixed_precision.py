"""The default models in each precision: seconds of a step, and what they learn.

    python -m benchmarks.speed.mixed_precision --models=params.amoebanet,params.transformer_lm
"""

import re
import subprocess
import sys
import tempfile
import time

from absl import app, flags

from benchmarks.support import common

_MODELS = flags.DEFINE_list('models', ['params.amoebanet', 'params.transformer_lm'], "Values of run.py's --model.")
_POLICIES = flags.DEFINE_list('policies', ['float32', 'mixed_bfloat16', 'mixed_float16'],
    'Values of task.dtype_policy.')
_OVERRIDE = flags.DEFINE_string('model_params_override', '', 'Further changes, handed on to run.py.')


def train(model, policy):
    """Trains once in a process of its own.

    Args:
        model: value of --model.
        policy: `task.dtype_policy`.

    Returns:
        Tuple of seconds in all, examples a second near the end, and the final metrics as text.
    """
    with tempfile.TemporaryDirectory() as logdir:
        started = time.monotonic()
        result = subprocess.run(
            [sys.executable, str(common.ROOT / 'run.py'), f'--model={model}', '--mode=train', f'--logdir={logdir}',
             f"--model_params_override=task.dtype_policy='{policy}'; {_OVERRIDE.value}"], capture_output=True,
             text=True)
        seconds = time.monotonic() - started
    output = result.stdout + result.stderr
    if result.returncode:
        raise RuntimeError(f'{model} in {policy} failed:\n{output[-2000:]}')
    speeds = re.findall(r'([\d.,]+) \w+/s', output)
    return seconds, speeds[-1] if speeds else '', re.search(r'Final Test after \d+ steps: (.*)', output).group(1)


def main(unused_argv):
    rows = []
    for model in _MODELS.value:
        for policy in _POLICIES.value:
            seconds, speed, metrics = train(model, policy)
            rows.append([model, policy, f'{seconds:.1f}', speed, metrics])
    common.report(common.markdown_table(['model', 'dtype_policy', 's in all', 'examples/s', 'final Test'], rows))


if __name__ == '__main__':
    app.run(main)
