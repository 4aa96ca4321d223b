"""When each device does what in some training steps: the mode `trace`, and `lingpipe.trace` for a `PipelineModel`."""

import time
from typing import Any

import keras
import tensorflow as tf

from lingpipe import hyperparams
from lingpipe.devices import variable_placement
from lingpipe.models import base_task, compiled_loss, pipeline_model
from lingpipe.schedules.timeline import StepTimes
from lingpipe.tools import action_times, traced
from lingpipe.training import errors, experiment, train_program
from lingpipe.training import logdir as logdirs

NUM_STEPS_TO_WARM_UP = 2


class TraceProgram(train_program.TrainProgram):
    """A `TrainProgram` that also records the times of each device's actions, updates, and waits for a batch."""

    def __init__(self, task: base_task.BaseTask, train_params: hyperparams.Params) -> None:
        super().__init__(task, train_params)
        self._clocks = action_times.Clocks()
        self._traced_function = tf.function(self._traced_step, autograph=False)

    def run_traced(self, iterator: Any) -> StepTimes:
        """Train for one step as `run` does, and return its times in seconds since 1970, by this machine's clock."""
        asked = time.time()
        batch = next(iterator)
        input_wait = asked, time.time()
        stamps, updates = self._traced_function(batch)
        body = self._task.body
        offsets = [self._clocks.offset(device) for device, _ in self._places()]
        updates = [
            tuple(moment - offset for moment in moments) for moments, offset in zip(updates.numpy().tolist(), offsets)]
        spans = self._times.spans(body.schedule, stamps.numpy())
        return StepTimes(body.schedule, spans, tuple(updates), len(body.replicas), input_wait)

    def _traced_step(self, batch):
        body = self._task.body
        self._times = body.grid.observer = action_times.ActionTimes(self._clocks.offset)
        try:
            numbers = self._step(batch)
        finally:
            body.grid.observer = None
        with tf.control_dependencies(list(numbers.values())):
            return self._times.stamps(), self._update_stamps

    def _train_on(self, out, step):
        stamps, gradients = action_times.TimeStamps(), dict(zip(map(id, self._trainable), out.gradients))
        begins = []
        for device, variables in self._places():
            with tf.device(device):
                there = [gradients[id(variable)] for variable in variables if gradients[id(variable)] is not None]
                begins.append(stamps.when_ready([out.squared_norm, *there]))
        with tf.control_dependencies(begins):
            norm = super()._train_on(out, step)
        ends = [self._end_of_update(stamps, begin, *place) for begin, place in zip(begins, self._places())]
        with tf.device('CPU:0'):
            self._update_stamps = tf.stack([tf.stack([begin, end]) for begin, end in zip(begins, ends)])
        return norm

    def _end_of_update(self, stamps, begin, device, variables):
        """Return the time when new values can be read: within a tf.function, a read waits for earlier assignments."""
        with tf.device(device):
            values = [read(variable) for read in {self.read, variable_placement.read_variable}
                      for variable in variables] or [begin]
            with tf.control_dependencies(values):
                return stamps.when_computed(values[0], device)

    def _places(self):
        """List for each device of all replicas its name and the trainable variables that it updates, each once."""
        body, seen = self._task.body, set()
        num_devices = body.schedule.num_devices
        places = [None] * (len(body.replicas) * num_devices)
        for stages in zip(*body.replicas):
            devices = [stage.device for stage in stages]
            new = [variable for variable in stages[0].trainable_variables if id(variable) not in seen]
            seen.update(map(id, new))
            for replica, variables in enumerate(_of_devices(new, devices)):
                place = replica * num_devices + body.schedule.device_of(stages[0].index)
                places[place] = devices[replica], (places[place][1] if places[place] else []) + variables
        return places


def _of_devices(variables, devices):
    """Return for each of some devices the list of the variables there; of equal devices the first has them."""
    owners = [variable_placement.owner(variable, devices) for variable in variables]
    places = [devices.index(owner) if owner in devices else 0 for owner in owners]
    return [[variable for variable, place in zip(variables, places) if place == index] for index in range(len(devices))]


class Trace:
    """Runs training steps from fresh weights and writes their times to the folder 'trace' of a log directory.

    Neither checkpoints nor curves are read or written, because the time of a step does not depend on the weights.

    Raises:
        ValueError: a field of `train` or `eval` cannot work.
        TrainingError: the log directory cannot be written to.
    """

    def __init__(self, params: hyperparams.Params, logdir: str, devices: list[str] | None = None) -> None:
        experiment.validate_training_params(params.train, params.eval)
        self._logdir = logdirs.LogDir(logdir)
        self._logdir.create_folder('trace')
        self._input = experiment.build_input(params.input, params.train.random_seed)
        self._task = experiment.build_task(params, self._input.input_spec, devices, self._logdir.path)
        self._program = TraceProgram(self._task, params.train)

    def run(self, num_steps: int) -> list:
        """Record some steps after a few for warm-up, write the files, and print the table and the advice.

        Raises:
            TrainingError: a loss is not finite, or the files cannot be written.
        """
        measured = traced.Traced.of(self._task.body, self._record(num_steps))
        paths = self._logdir.write_files('trace', measured.files(NUM_STEPS_TO_WARM_UP + 1))
        print(measured)
        print('\n' + '\n'.join(paths), flush=True)
        return measured.steps

    def _record(self, num_steps):
        try:
            # While the first step is built, the input prefetches many batches; a new iterator has none.
            self._program.run_traced(self._iterator_at(0))
            iterator = self._iterator_at(1)
            steps = [self._program.run_traced(iterator) for _ in range(1, NUM_STEPS_TO_WARM_UP + num_steps)]
        except StopIteration:
            raise errors.TrainingError(
                f'The input of training, {self._input.source}, has ended. Let its training_dataset repeat, as by '
                'dataset.repeat(), or give fewer --steps.') from None
        except tf.errors.InvalidArgumentError as error:
            if train_program.NON_FINITE not in str(error):
                raise
            raise errors.TrainingError(
                f'{train_program.NON_FINITE} Lower the learning rate or set train.clip_gradient_norm_to_value, and '
                'trace again.') from None
        return steps[NUM_STEPS_TO_WARM_UP - 1:]

    def _iterator_at(self, step):
        return iter(self._input.training_dataset(step * self._input.params.batch_size))


def trace(model: pipeline_model.PipelineModel, x: Any, y: Any = None, sample_weight: Any = None,
          num_steps: int = 3) -> traced.Traced:
    """Measure the forward and backward passes of some training steps, and change nothing in the model.

    ::

        measured = lingpipe.trace(model, x_batch, y_batch)
        print(measured)                  # where the time went, and advice
        measured.write('logs/trace')     # the picture, and a file for ui.perfetto.dev

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
    steps = [step.run() for _ in range(NUM_STEPS_TO_WARM_UP + num_steps)]
    return traced.Traced.of(model.pipe, steps[NUM_STEPS_TO_WARM_UP:])


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
