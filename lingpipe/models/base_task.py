"""The base class of tasks. As in Lingvo, a task is a network with a loss and metrics."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from lingpipe import hyperparams
from lingpipe.input import base_input
from lingpipe.layers import base_layer
from lingpipe.models import keras_metrics
from lingpipe.pipeline import gpipe_layer
from lingpipe.stages import losses, micro_batches


class BaseTask:
    """A pipelined network, called the body, with a loss on the last partition. A subclass defines `loss`.

    Attributes:
        larger_is_better: dictionary {name of a metric that `loss` returns: whether a larger value is better}.
        loss_and_metrics: `losses.LossAndStates` that computes `loss` and `params.metrics`.
    """

    larger_is_better: dict[str, bool] = {
        'loss': False, 'accuracy': True, 'bits_per_byte': False, 'log_perplexity': False}

    @classmethod
    def Params(cls) -> hyperparams.InstantiableParams:
        """Return the InstantiableParams of this task, with `body`, `train` and `eval`."""
        p = hyperparams.InstantiableParams(cls)
        p.Define('name', None, 'Name of the task.')
        p.Define('body', gpipe_layer.GPipeLayer.Params().Set(name='body'), 'The stack of layers, as GPipeLayer params.')
        p.Define('dtype_policy', None, 'Precision of the body where it names none: one of '
                                       f'{base_layer.DTYPE_POLICIES}.')
        p.Define('metrics', [], 'List of KerasParams of Keras metrics, besides the metrics of `loss`, over the whole '
                                'dataset in evaluation, and over the batch of each step in training.')
        p.Define('train', train_params(), 'How the task is trained.')
        p.Define('eval', eval_params(), 'How the task is evaluated.')
        return p

    def __init__(self, params: hyperparams.InstantiableParams) -> None:
        self.params = params
        _check_fields(params)
        self.body = params.body.Copy().Set(dtype_policy=params.body.dtype_policy or params.dtype_policy).Instantiate()
        self._states = keras_metrics.make_states(params.metrics, self.metric_arguments)
        self.loss_and_metrics = losses.LossAndStates(self.loss, self._states)

    def loss(self, targets: Any, outputs: Any) -> dict[str, Any]:
        """Compute the metrics of one micro-batch.

        Args:
            targets: tuple (labels, weights), each `[batch]`; examples of weight 0 do not count.

        Returns:
            Dictionary {name: (mean over the examples, weight)}. Training minimises the entry 'loss'.
        """
        raise NotImplementedError(f'{type(self).__name__} defines no loss. Write its method loss(targets, outputs).')

    def check_input(self, training_input: Any) -> None:
        """Raise ValueError if an input does not fit the body. `BaseTask` checks only the tokenizer."""
        tokenizer, source = getattr(training_input, 'tokenizer', None), self.params.body.model
        if tokenizer is not None and source is not None:
            source.Instantiate().check_tokenizer(self.body.model, tokenizer)
        known = getattr(getattr(self.body.model, 'backbone', None), 'vocabulary_size', None)
        if tokenizer is not None and known is not None and tokenizer.vocab_size > known:
            raise ValueError(f'input.tokenizer has vocab_size={tokenizer.vocab_size}, but the backbone has '
                             f'vocabulary_size={known}. Use the tokenizer that the model was made for.')

    def require_labels(self, training_input: Any, num_targets: int | None = None) -> None:
        """Raise ValueError if the targets of an input do not fit the body's logits.

        Args:
            num_targets: number of target tensors that the task takes; None: any number.
        """
        kind, targets = type(training_input).__name__, training_input.TargetSpec(training_input.params)
        logits = tf.nest.flatten(self.body.output_of_one_example)[0].shape[1:]
        if num_targets not in (None, len(targets)):
            raise ValueError(f'{kind} gives {len(targets)} tensors beside its inputs, but {type(self).__name__} takes '
                             f'{num_targets}. Use another input.')
        # Each position with logits needs a label.
        if targets[0].shape[1:] not in (logits[:-1], [*logits[:-1], 1]):
            raise ValueError(f'{kind} gives labels of shape {list(targets[0].shape[1:])} for an example, but the body '
                             f'returns logits of shape {list(logits)}, which need {list(logits[:-1])}. '
                             'Use another input.')

    def metric_arguments(self, targets: Any, outputs: Any) -> tuple:
        """Return tensors (y_true, y_pred, sample_weight) for the Keras metrics of `params.metrics`.

        Args:
            targets: tuple (labels, weights, ...), as `loss` takes it.

        Raises:
            ValueError: the body returns several tensors.
        """
        if not tf.is_tensor(outputs):
            raise ValueError(
                f'{type(self).__name__} compares one tensor with the labels, but the body returns '
                f'{len(tf.nest.flatten(outputs))}. Write its method metric_arguments(targets, outputs), which says '
                'which one is meant, or let the last layer return one.')
        labels, weights, *_ = targets
        return labels, outputs, weights

    def decoding_metrics(self, inputs: Any, targets: tuple, read: Callable) -> dict[str, Any]:
        """Compute slow metrics for the final evaluation, such as scores of whole translations.

        Args:
            inputs: nest of tensors `[batch, ...]`, the body's input.
            targets: tuple of tensors `[batch, ...]`, as `loss` gets them.
            read: function that returns the value to use for a Keras variable, such as its moving average.

        Returns:
            Dictionary {name: (sum over the examples, weight)}; empty if there are no such metrics.
        """
        del inputs, targets, read
        return {}

    def sample(self, training_input: base_input.BaseInput, read: Callable) -> str | None:
        """Return a sample of the model's output, or None. Evaluations during training show the sample."""
        del training_input, read
        return None

    def is_larger_better(self, metric: str) -> bool | None:
        """Return whether a larger metric is better, or None if unknown. Call `metric_names` before this method."""
        state = self._states.get(metric)
        return state.is_larger_better if state else self.larger_is_better.get(metric)

    def metric_names(self, targets: Any) -> set:
        """Return the names of all metrics. `targets` is a nest of `tf.TensorSpec`s.

        Raises:
            ValueError: one of `params.metrics` cannot be computed.
        """
        p, batch_size = self.params.body, tf.nest.flatten(targets)[0].shape[0]
        num_rows = micro_batches.most_rows(batch_size, p.num_replicas * p.num_micro_batches)
        specs = micro_batches.specs_of((targets, self.body.output_of_one_example), num_rows)  # the body is not traced
        return set(
            tf.function(self.loss_and_metrics, autograph=False).get_concrete_function(*specs).structured_outputs)


def _check_fields(p: hyperparams.InstantiableParams) -> None:
    smoothing = p.label_smoothing if 'label_smoothing' in p else 0.0
    if not isinstance(smoothing, (int, float)) or not 0 <= smoothing < 1:
        raise ValueError(f'task.label_smoothing={smoothing!r} is not possible: it must be in [0, 1). Set it to 0.1, '
                         'for instance, or to 0 for none.')
    if not isinstance(p.metrics, (list, tuple)):
        raise ValueError(f'task.metrics={p.metrics!r} is not possible: it must be a list of KerasParams. Set it to [] '
                         'for none.')


def train_params() -> hyperparams.Params:
    """Return the Params of training. Fields that exist in Lingvo have the same names here."""
    p = hyperparams.Params()
    p.Define('max_steps', 4_000_000, 'Number of training steps.')
    p.Define('learning_rate', None, "Constant learning rate; None: that of lr_schedule, or the optimizer's own.")
    p.Define('lr_schedule', None, 'InstantiableParams of a keras LearningRateSchedule: step -> learning rate.')
    p.Define('optimizer', None, 'KerasParams of a Keras optimizer; None: SGD.')
    p.Define('clip_gradient_norm_to_value', 0.0, 'Largest global norm of the gradients; 0 does not clip.')
    p.Define('l2_regularizer_weight', 0.0, 'Half of this times the sum of squares of all kernels is added to the loss.')
    p.Define('ema_decay', 0.0, 'Decay of the moving average of the weights that evaluation uses; 0 keeps none.')
    p.Define('random_seed', 0, 'Seed of initial weights, input order, augmentation and dropout.')
    p.Define('steps_per_loop', 20, 'Training steps in one call of the compiled function.')
    p.Define('input_timeout_seconds', 600.0, 'Longest wait for a batch of the input; then the process names the input '
                                             'and ends, with exit code 75; 0: no limit.')
    p.Define('save_interval_seconds', 600.0, 'Seconds between two checkpoints.')
    p.Define('save_async', True, 'Whether training continues while a checkpoint is written, and pauses only to copy '
                                 'weights to host memory.')
    p.Define('checkpoint_timeout_seconds', 3600.0, 'Longest time to write or read a checkpoint; then the process names '
                                                   'the checkpoint and ends, with exit code 75; 0: no limit.')
    p.Define('save_max_to_keep', 5, 'Number of newest checkpoints to keep.')
    p.Define('summary_interval_steps', 100, 'Steps between two points of the TensorBoard curves.')
    p.Define('trackers', [], 'Names of services that get params and curves too, of `training.trackers.TRACKERS`.')
    p.Define('init_from_checkpoint', None, 'Checkpoint with the initial weights of a new training run; variables that '
                                           'it lacks are newly initialised.')
    p.Define('init_from_checkpoint_rules', {}, 'Rules for the initial weights of a new training run: {path of a '
             "checkpoint: ([(regular expression for the model's names, name in the checkpoint with '%s' for each "
             'group)], [expressions for variables that are newly initialised])}.')
    return p


def eval_params() -> hyperparams.Params:
    """Return the Params of evaluation."""
    p = hyperparams.Params()
    p.Define('interval_steps', 0, 'Training steps between two evaluations; 0 evaluates at the end only.')
    p.Define('best_metric', 'loss', "Metric whose best checkpoint is kept in 'best'; None keeps no best.")
    p.Define('best_is_largest', None, 'Whether a larger best_metric is better; None: as is known of losses, accuracies '
                                      "and Keras's metrics.")
    return p
