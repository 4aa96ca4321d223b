"""The mode `trace`: records when each device did what in some training steps, and writes it to a folder."""

import dataclasses
import pathlib
import statistics
import time
from typing import Any, Self

import tensorflow as tf

from lingpipe import drawing, host_processor, hyperparams, text_tables
from lingpipe.devices import variable_placement
from lingpipe.models import base_task
from lingpipe.partition import partition_summary
from lingpipe.pipeline import gpipe_layer
from lingpipe.schedules import simulation
from lingpipe.schedules.timeline import StepTimes
from lingpipe.tools import action_times, trace_breakdown, trace_picture
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
        traced = Traced.of(self._task.body, self._record(num_steps), self._input.params.batch_size)
        paths = self._logdir.write_files('trace', traced.files(NUM_STEPS_TO_WARM_UP + 1))
        print(traced)
        print('\n' + '\n'.join(paths), flush=True)
        return traced.steps

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


@dataclasses.dataclass(frozen=True)
class Traced:
    """Some measured steps; `print` shows where their time went, and advice.

    Attributes:
        steps: list of `StepTimes`.
        batch_size: rows of the batch.
        row_names: name of each device.
        num_cores: processor cores that the devices share; None: they are accelerators.
    """

    steps: list[StepTimes]
    batch_size: int
    row_names: list[str]
    num_cores: int | None

    @classmethod
    def of(cls, body: gpipe_layer.GPipeLayer, steps: list[StepTimes], batch_size: int) -> Self:
        """Return the `Traced` of a built pipeline's steps, with the names and cores of its devices."""
        on_cpu = any(tf.DeviceSpec.from_string(stage.device).device_type == 'CPU' for stage in body.stages)
        return cls(steps, batch_size, _row_names(body), host_processor.num_cores() if on_cpu else None)

    def __str__(self) -> str:
        first, parts = self.steps[0], trace_breakdown.mean_breakdown(self.steps)
        milliseconds = statistics.fmean(step.input_seconds + step.seconds for step in self.steps) * 1000
        shares = trace_breakdown.input_shares(self.steps, dataclasses.asdict(parts))
        if not first.updates:  # not measured
            del shares['update']
        mean = f'1 step of {milliseconds:.1f} ms' if len(self.steps) == 1 else (
            f'{len(self.steps)} steps of {milliseconds:.1f} ms on average')
        replicas = f'{first.num_replicas} replicas of ' if first.num_replicas > 1 else ''
        each, schedule = ' each' if replicas else '', first.schedule
        title = (f'{mean}: {schedule.name}, {replicas}{schedule.num_stages} partitions on '
                 f'{first.num_devices} devices, {schedule.num_micro_batches} micro-batches{each}')
        table = text_tables.table(['part', '% of the step'], list(shares.items()))
        return '\n\n'.join([
            title, table, '\n'.join(trace_breakdown.advice(self.steps, self.batch_size, self.num_cores))])

    def png(self) -> bytes:
        """Return the picture of a typical step above the simulated one, as the bytes of a PNG file."""
        typical = sorted(self.steps, key=lambda step: step.seconds)[(len(self.steps) - 1) // 2]
        panels = {'measured': typical, 'simulated on the mean times': simulated(self.steps)}
        return drawing.png(trace_picture.figure(panels, self.row_names))

    def files(self, first_step: int = 1) -> dict[str, str | bytes]:
        """Return {name: contents} of the picture, and of a file for ui.perfetto.dev."""
        return {'timeline.png': self.png(),
                'trace.json': trace_picture.trace_text(self.steps, self.row_names, first_step)}

    def write(self, folder: str) -> None:
        """Write timeline.png, and trace.json for ui.perfetto.dev, to a folder, which is created if needed."""
        path = pathlib.Path(folder).expanduser()
        path.mkdir(parents=True, exist_ok=True)
        for name, contents in self.files().items():
            (path / name).write_bytes(contents.encode() if isinstance(contents, str) else contents)


def simulated(steps: list[StepTimes]) -> StepTimes:
    """Return the `StepTimes` of a step simulated with mean measured times of actions and updates, without transfers."""
    ends = [(begin - step.actions_end, end - begin) for step in steps for begin, end in step.updates]
    begin, end = [max(statistics.fmean(parts), 0.0) for parts in zip(*ends)] or [0.0, 0.0]
    return simulation.replay(steps[0].schedule, trace_breakdown.mean_durations(steps), (begin, end))


def _row_names(body):
    """Return for each device of a built pipeline a name such as 'CPU:3, replica 1, partition 1'."""
    names = []
    for replica, stages in enumerate(body.replicas):
        of_replica = f'replica {replica}, ' if len(body.replicas) > 1 else ''
        for device in range(body.schedule.num_devices):
            held = [stage for stage in stages if body.schedule.device_of(stage.index) == device]
            names.append(_row_name(held, of_replica))
    return names


def _row_name(held, replica):
    indices = ' '.join(str(stage.index) for stage in held)
    device = partition_summary.short_device(held[0].device)
    return f'{device}, {replica}partition{"s" if len(held) > 1 else ""} {indices}'
