"""`lingpipe.trace`: when each device computes what in a training step of a `PipelineModel`."""

from typing import Any

import keras
import tensorflow as tf

from lingpipe.models import compiled_loss, pipeline_model
from lingpipe.schedules.timeline import StepTimes
from lingpipe.tools import action_times
from lingpipe.tools import trace as training_trace


def trace(model: pipeline_model.PipelineModel, x: Any, y: Any = None, sample_weight: Any = None,
          num_steps: int = 3) -> training_trace.Traced:
    """Measure the forward and backward passes of some training steps, and change nothing in the model.

    ::

        traced = lingpipe.trace(model, x_batch, y_batch)
        print(traced)                  # where the time went, and advice
        traced.write('logs/trace')     # the picture, and a file for ui.perfetto.dev

    Args:
        model: a compiled `PipelineModel`.
        x: nest of tensors `[batch, ...]`, one batch.
        y: nest of tensors `[batch, ...]`, its targets.
        sample_weight: tensor `[batch, ...]`, or None.
        num_steps: how many steps to measure, after two for warm-up.

    Raises:
        TypeError: `model` is not a `PipelineModel`.
        ValueError: `model` is not compiled, its loss is computed on the whole batch, outside the pipeline, or an
            argument is wrong.
    """
    require_compiled(model)
    require_batch(model, x, y, sample_weight)
    if num_steps < 1:
        raise ValueError(f'num_steps={num_steps} measures nothing. Give 1 or more.')
    step = _Step(model, *keras.tree.map_structure(tf.convert_to_tensor, (x, y, sample_weight), none_is_leaf=False))
    steps = [step.run() for _ in range(training_trace.NUM_STEPS_TO_WARM_UP + num_steps)]
    return training_trace.Traced.of(
        model.pipe, steps[training_trace.NUM_STEPS_TO_WARM_UP:], len(tf.nest.flatten(x)[0]))


def require_compiled(model: Any) -> None:
    """Raise TypeError or ValueError, as `trace`, if a model is not a compiled `PipelineModel`."""
    if not isinstance(model, pipeline_model.PipelineModel):
        raise TypeError(f'model={model!r} is not a PipelineModel. Trace lingpipe.PipelineModel(pipe), compiled.')
    if not model.compiled:
        raise ValueError(f'{model.name!r} is not compiled. Call compile(optimizer, loss) first.')


def require_batch(model: pipeline_model.PipelineModel, x: Any, y: Any, sample_weight: Any) -> None:
    """Raise ValueError, as `trace`, if a batch is not of arrays, or lacks targets."""
    leaves = [leaf for leaf in keras.tree.flatten((x, y, sample_weight)) if leaf is not None]
    if not all(len(getattr(leaf, 'shape', ())) for leaf in leaves):
        raise ValueError('A batch has a number, or a list of numbers, where arrays [batch, ...] are needed. Give NumPy '
                         'arrays or tensors.')
    if y is None and model._compile_loss is not None:
        raise ValueError('y=None was given, but the loss of compile compares outputs with targets. Give them.')


class _Step:
    """The passes of a training step between timestamps, without its update."""

    def __init__(self, model, x, y, sample_weight):
        self._pipe, self._x, self._clocks = model.pipe, x, action_times.Clocks()
        self._function = tf.function(self._stamped, autograph=False)
        try:
            self._loss, self._targets = model.loss_and_targets(x, y, sample_weight)
            self._function.get_concrete_function(x, self._targets)
        except compiled_loss.NotAdditive as error:
            raise ValueError(f'{error}: the loss is computed on the whole batch, outside the pipeline.') from error

    def run(self):
        """Return the `StepTimes` of one step."""
        stamps = self._function(self._x, self._targets).numpy()
        schedule = self._pipe.schedule
        return StepTimes(schedule, self._times.spans(schedule, stamps), num_replicas=len(self._pipe.replicas))

    def _stamped(self, x, targets):
        self._times = self._pipe.grid.observer = action_times.ActionTimes(self._clocks.offset)
        try:
            out = self._pipe.value_and_grad(self._loss, x, targets, step=0, assign_state=False)
        finally:
            self._pipe.grid.observer = None
        with tf.control_dependencies([out.loss, out.squared_norm]):
            return self._times.stamps()
