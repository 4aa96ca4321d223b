"""The mode `trace` and the function `lingpipe.trace`, which measure training steps."""

import time
from typing import Any

import keras
import tensorflow as tf

from lingpipe import hyperparams
from lingpipe.devices import variable_placement
from lingpipe.models import base_task, compiled_loss, pipeline_model
from lingpipe.schedules.timeline import StepTimes
from lingpipe.tools import action_times, traced
from lingpipe.training import experiment, train_program
from lingpipe.training import logdir as logdirs

NUM_STEPS_TO_WARM_UP = 2


class TraceProgram(train_program.TrainProgram):
    """A `TrainProgram` that can measure a step."""

    def __init__(self, task: base_task.BaseTask, train_params: hyperparams.Params) -> None:
        super().__init__(task, train_params)
        self._clocks = action_times.Clocks()
        self._traced_function = tf.function(self._traced_step, autograph=False)

    def run_traced(self, iterator: Any) -> StepTimes:
        """Train for one step, and return the measured times, in seconds since 1970."""
        asked = time.time()
        batch = next(iterator)
        input_wait = asked, time.time()
        stamps, (begin, *ends) = (result.numpy() for result in self._traced_function(batch))
        body, offsets = self._task.body, map(self._clocks.offset, self._variables_by_device())
        update = begin, max(end - offset for end, offset in zip(ends, offsets))
        updates = (update,) * len(body.replicas) * body.schedule.num_devices
        return StepTimes(body.schedule, self._times.spans(body.schedule, stamps), updates,
                         len(body.replicas), input_wait)

    def _traced_step(self, batch):
        self._times = action_times.ActionTimes(self._clocks.offset)
        with self._times.observing(self._task.body):
            numbers = self._step(batch)
        with tf.control_dependencies(list(numbers.values())):
            return self._times.stamps(), self._update_stamps

    def _train_on(self, out, step):
        stamps = action_times.TimeStamps()
        with tf.device('CPU:0'):
            begin = stamps.when_ready([out.squared_norm])
        with tf.control_dependencies([begin]):
            norm = super()._train_on(out, step)
        ends = [self._end_of_update(stamps, *place) for place in self._variables_by_device().items()]
        with tf.device('CPU:0'):
            self._update_stamps = tf.stack([begin, *ends])
        return norm

    def _end_of_update(self, stamps, device, variables):
        """Build a timestamp of the moment when `variables` have their new values."""
        with tf.device(device):
            values = [read(variable) for read in {self.read, variable_placement.read_variable}
                      for variable in variables]  # within a tf.function, a read waits for earlier assignments
            with tf.control_dependencies(values):
                return stamps.when_computed(values[0], device)

    def _variables_by_device(self):
        """Return the trained variables of each device, by device name."""
        devices, found = [stage.device for stages in self._task.body.replicas for stage in stages], {}
        for variable in self._trainable:
            found.setdefault(variable_placement.owner(variable, devices), []).append(variable)
        return found


class Trace:
    """Measurement of training steps, with results in the folder 'trace' of a log directory.

    No checkpoint or curve is read or written.

    Raises:
        ValueError: a field of `train` or `eval` is invalid.
        TrainingError: the log directory cannot be written to.
    """

    def __init__(self, params: hyperparams.Params, logdir: str, devices: list[str] | None = None) -> None:
        experiment.validate_training_params(params.train, params.eval)
        self._logdir = logdirs.LogDir(logdir)
        self._logdir.create_folder('trace')
        self._input = experiment.build_input(params.input, params.train.random_seed)
        # No checkpoint is read, because step times do not depend on the values of weights.
        self._task = experiment.build_task(params, self._input.input_spec, devices, self._logdir.path)
        self._program = TraceProgram(self._task, params.train)

    def run(self, num_steps: int) -> list:
        """Measure `num_steps` steps, write the files, and print the result. Return the `StepTimes` of the steps."""
        measured = traced.Traced.of(self._task.body, self._record(num_steps))
        paths = self._logdir.write_files('trace', measured.files())
        print(measured)
        print('\n' + '\n'.join(paths), flush=True)
        return measured.steps

    def _record(self, num_steps):
        # While the first step is built, the input prefetches many batches, so other steps begin with a new iterator.
        self._program.run_traced(self._iterator_at(0))
        iterator = self._iterator_at(1)
        steps = [self._program.run_traced(iterator) for _ in range(1, NUM_STEPS_TO_WARM_UP + num_steps)]
        return steps[NUM_STEPS_TO_WARM_UP - 1:]

    def _iterator_at(self, step):
        return iter(self._input.training_dataset(step * self._input.params.batch_size))


def trace(model: pipeline_model.PipelineModel, x: Any, y: Any = None, sample_weight: Any = None,
          num_steps: int = 3) -> traced.Traced:
    """Measure the forward and backward passes of training steps. The model does not change.

    ::

        measured = lingpipe.trace(model, x_batch, y_batch)
        print(measured)                  # where the time went, and advice
        measured.write('logs/trace')     # the picture, and a file for ui.perfetto.dev

    Args:
        x: nest of tensors `[batch, ...]`, one batch.
        y: nest of tensors `[batch, ...]`, the targets of the batch.
        sample_weight: tensor `[batch, ...]`, or None.
        num_steps: how many steps to measure, after two warm-up steps.

    Raises:
        TypeError: `model` is not a `PipelineModel`.
        ValueError: `model` is not compiled, its loss is computed outside the pipeline, or an argument is wrong.
    """
    require_compiled(model)
    require_targets(model, y)
    if num_steps < 1:
        raise ValueError(f'num_steps={num_steps} measures nothing. Give 1 or more.')
    step = _Step(model, *keras.tree.map_structure(tf.convert_to_tensor, (x, y, sample_weight), none_is_leaf=False))
    steps = [step.run() for _ in range(NUM_STEPS_TO_WARM_UP + num_steps)]
    return traced.Traced.of(model.pipe, steps[NUM_STEPS_TO_WARM_UP:])


def require_compiled(model: Any) -> None:
    """Raise TypeError or ValueError unless `model` is a compiled `PipelineModel`."""
    if not isinstance(model, pipeline_model.PipelineModel):
        raise TypeError(f'model={model!r} is not a PipelineModel. Trace lingpipe.PipelineModel(pipe), compiled.')
    if not model.compiled:
        raise ValueError(f'{model.name!r} is not compiled. Call compile(optimizer, loss) first.')


def require_targets(model: pipeline_model.PipelineModel, y: Any) -> None:
    """Raise ValueError if `y` is None and the model's loss needs targets."""
    if y is None and model._compile_loss is not None:
        raise ValueError('y=None was given, but the loss of compile compares outputs with targets. Give them.')


class _Step:
    """The forward and backward passes of a training step, with timestamps."""

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
        self._times = action_times.ActionTimes(self._clocks.offset)
        with self._times.observing(self._pipe):
            out = self._pipe.value_and_grad(self._loss, x, targets, step=0, assign_state=False)
        with tf.control_dependencies([out.loss, out.squared_norm]):
            return self._times.stamps()
