"""The default models in each precision: seconds of a step, and what they learn.

    python -m benchmarks.speed.mixed_precision --models=params.amoebanet,params.transformer_lm
"""

import re
import tempfile

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
        finished = common.run_command(
            model, 'train', logdir, f"--model_params_override=task.dtype_policy='{policy}'; {_OVERRIDE.value}")
    speeds = re.findall(r'([\d.,]+) \w+/s', finished.logged)
    metrics = re.search(r'Final Test after \d+ steps: (.*)', finished.logged).group(1)
    return finished.seconds, speeds[-1] if speeds else '', metrics


def main(unused_argv):
    rows = []
    for model in _MODELS.value:
        for policy in _POLICIES.value:
            seconds, speed, metrics = train(model, policy)
            rows.append([model, policy, f'{seconds:.1f}', speed, metrics])
    common.report(common.markdown_table(['model', 'dtype_policy', 's in all', 'examples/s', 'final Test'], rows))


if __name__ == '__main__':
    app.run(main)
