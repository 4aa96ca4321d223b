"""Checks of the params of training before anything is built."""

from lingpipe import spelling
from lingpipe.training import initial_weights

_SMALLEST_INTEGERS = {
    'max_steps': 0, 'steps_per_loop': 1, 'save_max_to_keep': 1, 'summary_interval_steps': 0, 'random_seed': 0}
_SMALLEST_NUMBERS = {'save_interval_seconds': 0, 'clip_gradient_norm_to_value': 0, 'l2_regularizer_weight': 0}


def validate_training_params(train, evaluation):
    """Raises ValueError, in a sentence that says what to do, when a field cannot work.

    Args:
        train: the Params of training.
        evaluation: the Params of evaluation.
    """
    for field, smallest in _SMALLEST_INTEGERS.items():
        _check_at_least(f'train.{field}', train.Get(field), smallest, int)
    for field, smallest in _SMALLEST_NUMBERS.items():
        _check_at_least(f'train.{field}', train.Get(field), smallest, (int, float))
    _check_at_least('eval.interval_steps', evaluation.interval_steps, 0, int)
    initial_weights.validate(train)
    if not 0 <= train.ema_decay < 1:
        raise ValueError(f'train.ema_decay={train.ema_decay!r} is not possible: it must be in [0, 1). Set it to 0.999, '
                         'for instance, or to 0 for no moving average.')


def validate_best_metric(evaluation, metric_names):
    """Raises ValueError when the metric whose best checkpoint is to be kept does not exist.

    Args:
        evaluation: the Params of evaluation.
        metric_names: set of the names of the task's metrics.
    """
    name = evaluation.best_metric
    if name is not None and name not in metric_names:
        raise ValueError(
            f'eval.best_metric={name!r} is not a metric of this task{spelling.did_you_mean(str(name), metric_names)} '
            'Set it to a metric that is, or to None to keep no best checkpoint.')


def _check_at_least(field, value, smallest, kind):
    if not isinstance(value, kind) or isinstance(value, bool) or not value >= smallest:
        noun = 'an integer' if kind is int else 'a number'
        raise ValueError(f'{field}={value!r} is not possible: it must be {noun} of {smallest} or more. '
                         f'Set it to {smallest} at least.')
