"""The input, the task and the placement of an experiment, and checks of its params."""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import keras

from lingpipe import hyperparams, wording
from lingpipe.input import base_input
from lingpipe.models import base_task
from lingpipe.optimizers import training_optimizer
from lingpipe.training import initial_weights, trackers, train_program

_SMALLEST_INTEGERS = {
    'max_steps': 0, 'steps_per_loop': 1, 'save_max_to_keep': 1, 'summary_interval_steps': 0, 'random_seed': 0}
_SIZES = 'batch_size', 'image_size', 'sequence_length', 'source_length', 'target_length', 'num_features'
_SMALLEST_NUMBERS = {
    'input_timeout_seconds': 0, 'save_interval_seconds': 0, 'checkpoint_timeout_seconds': 0,
    'clip_gradient_norm_to_value': 0, 'l2_regularizer_weight': 0}


def validate_training_params(train: hyperparams.Params, evaluation: hyperparams.Params) -> None:
    """Raise ValueError if a param in `train` or `evaluation` has an impossible value."""
    for field, smallest in _SMALLEST_INTEGERS.items():
        _check_at_least(f'train.{field}', train.Get(field), smallest, int)
    for field, smallest in _SMALLEST_NUMBERS.items():
        _check_at_least(f'train.{field}', train.Get(field), smallest, (int, float))
    _check_at_least('eval.interval_steps', evaluation.interval_steps, 0, int)
    _require(isinstance(evaluation.best_metric, (str, type(None))), 'eval.best_metric', evaluation.best_metric,
             "the name of a metric, or None to keep no best checkpoint. Set it to 'loss', for instance")
    _require(isinstance(evaluation.best_is_largest, (bool, type(None))), 'eval.best_is_largest',
             evaluation.best_is_largest, 'True, False or None. Set it to one of them')
    _require(isinstance(train.save_async, bool), 'train.save_async', train.save_async,
             'True or False. Set it to one of them')
    _require(isinstance(train.ema_decay, (int, float)) and 0 <= train.ema_decay < 1, 'train.ema_decay',
             train.ema_decay, 'in [0, 1). Set it to 0.999, for instance, or to 0 for no moving average')
    if train.learning_rate is not None:
        _check_at_least('train.learning_rate', train.learning_rate, 0, (int, float))
    initial_weights.validate(train)
    trackers.validate(train.trackers)


def _require(is_possible: bool, field: str, value: Any, allowed: str) -> None:
    if not is_possible:
        raise ValueError(f'{field}={value!r} is not possible: it must be {allowed}.')


def require_evaluation_inputs(evaluation: hyperparams.Params, inputs: Mapping[str, Any]) -> None:
    """Raise ValueError if `evaluation` asks for evaluations during training and `inputs` is empty."""
    if evaluation.interval_steps and not inputs:
        raise ValueError(f'eval.interval_steps={evaluation.interval_steps} is not possible: the model has neither '
                         'Dev() nor Test(). Write one of them, or set it to 0.')


def is_larger_better(evaluation: hyperparams.Params, task: base_task.BaseTask, metric_names: set) -> bool | None:
    """Return whether a larger value of `eval.best_metric` is better. Return None if no best checkpoint is kept.

    Raises:
        ValueError: the task has no such metric, or it is unknown which values are better.
    """
    name, said = evaluation.best_metric, evaluation.best_is_largest
    if name is None:
        return None
    if name not in metric_names:
        raise ValueError(
            f'eval.best_metric={name!r} is not a metric of this task{wording.did_you_mean(str(name), metric_names)} '
            'Set it to a metric that is, or to None to keep no best checkpoint.')
    is_larger_better = task.is_larger_better(name) if said is None else said
    if is_larger_better is None:
        raise ValueError(f'eval.best_is_largest=None: it is not known whether a larger {name} is better. Set it to '
                         'True or False.')
    return is_larger_better


def _check_at_least(field: str, value: Any, smallest: int,
                    kind: type[int] | tuple[type[int], type[float]]) -> None:
    noun = 'an integer' if kind is int else 'a number'
    _require(isinstance(value, kind) and not isinstance(value, bool) and value >= smallest, field, value,
             f'{noun} of {smallest} or more. Set it to {smallest} at least')


def build_input(input_params: hyperparams.InstantiableParams, random_seed: int = 0) -> base_input.BaseInput:
    """Instantiate an input. If its `seed` is None, use `random_seed`."""
    p = input_params.Copy()
    if 'seed' in p and p.seed is None:
        p.seed = random_seed
    return p.Instantiate()


def input_spec(params: hyperparams.Params) -> Any:
    """Return the specs of the network's input, a nest of `tf.TensorSpec`. No data are prepared.

    Raises:
        ValueError: a size of the input is not a positive integer.
    """
    p = params.input
    for field in _SIZES:
        if field in p and (p.Get(field) is not None or field == 'batch_size'):
            _check_at_least(f'input.{field}', p.Get(field), 1, int)  # no input is built, which would check this
    return p.cls.InputSpec(p)


def build_task(params: hyperparams.Params, input_spec: Any, devices: list[str] | None = None,
               logdir: str | None = None) -> base_task.BaseTask:
    """Instantiate the task and create its weights. Pretrained weights are not loaded.

    Args:
        devices: device names, used if the params have none.
        logdir: folder for measured times of layers, used if the params have none.
    """
    p = params.task.Copy().Set(body=body_params(params))
    p.body.devices = p.body.devices or devices
    p.body.profile_dir = p.body.profile_dir or logdir
    keras.utils.set_random_seed(params.train.random_seed)
    task = p.Instantiate()
    task.body.build_from_specs(input_spec, load_weights=False)
    return task


def body_params(params: hyperparams.Params) -> hyperparams.InstantiableParams:
    """Copy the params of the body, and fill in fields that depend on other params."""
    p = params.task.body.Copy()
    if p.random_seed is None:
        p.random_seed = params.train.random_seed
    if p.memory_limit is not None and p.num_optimizer_slots is None:
        p.num_optimizer_slots = training_optimizer.num_slots(params.train)
    p.dtype_policy = p.dtype_policy or params.task.dtype_policy
    return p


def evaluation_params(params: hyperparams.Params) -> hyperparams.Params:
    """Return a copy of an experiment's Params for evaluation only."""
    params = params.Copy()
    body = params.task.body.Set(memory_limit=None)  # evaluation needs no gradients, slots or stored activations
    if body.partition_by == 'time':
        body.partition_by = 'flops'  # a measurement and a training run on the same machine would disturb each other
    return params


class Placement:
    """Where a task trains: by default, on devices of this process. Subclasses are in `lingpipe/placements`.

    ::

        Trainer ──> creating()      scope in which the task and its variables are created
                ──> program(...)    the training step: where it runs, and how it sums gradients
                ──> evaluate(...)   the evaluation of a batch

    Attributes:
        devices: list of device names, one for each partition of each replica that this process builds. None: LingPipe
            chooses them. Devices in the params take precedence.
    """

    def __init__(self, devices: list[str] | None = None) -> None:
        self.devices = devices

    def creating(self) -> Any:
        """Return the context in which a task is built."""
        return contextlib.nullcontext()

    def program(self, task: base_task.BaseTask, train_params: hyperparams.Params,
                batch_spec: Any) -> train_program.TrainProgram:
        """Return the `TrainProgram` of a task.

        Args:
            task: a `BaseTask` whose body is built on `devices`, in `creating()`.
            batch_spec: nest `(inputs, *targets)` of `tf.TensorSpec`s of a training batch, with shapes `[batch, ...]`.
        """
        return train_program.TrainProgram(task, train_params)

    def evaluate(self, function: Callable, batch: Any) -> dict[str, tuple]:
        """Call `function(batch)` on the devices of the task, and return the result."""
        return function(batch)
