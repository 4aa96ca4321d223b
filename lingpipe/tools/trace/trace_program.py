"""The training step with time stamps."""

import time

import tensorflow as tf

from lingpipe.devices import variable_placement, variable_values
from lingpipe.schedules.step_times import StepTimes
from lingpipe.tools.trace import action_times
from lingpipe.training import train_program


class TraceProgram(train_program.TrainProgram):
    """A `TrainProgram` that also tells when each device began and ended each action, and its update, and waited for a batch.

    Args:
        task: a `BaseTask` whose body is built.
        train_params: the Params of training.
    """

    def __init__(self, task, train_params):
        super().__init__(task, train_params)
        self._clocks = action_times.Clocks()
        self._traced_function = tf.function(self._traced_step, autograph=False)

    def run_traced(self, iterator):
        """Trains for one step.

        Args:
            iterator: iterator of batches of one static shape, as for `run`.

        Returns:
            `StepTimes` in seconds since 1970, by this machine's clock.

        Raises:
            tf.errors.InvalidArgumentError: a loss or gradient is not finite; the message has NON_FINITE in it.
        """
        asked = time.time()
        batch = next(iterator)
        input_wait = asked, time.time()
        stamps, updates = self._traced_function(batch)
        body = self._task.body
        offsets = [self._clocks.offset(device) for device, _ in self._places()]
        updates = [tuple(moment - offset for moment in moments) for moments, offset in zip(updates.numpy().tolist(), offsets)]
        return StepTimes(body.schedule, self._times.spans(body.schedule, stamps.numpy()), tuple(updates), len(body.replicas),
                         input_wait)

    def _traced_step(self, batch):
        body = self._task.body
        self._times = body.observer = action_times.ActionTimes(self._clocks.offset)
        try:
            row = self._step(batch)
        finally:
            body.observer = None
        with tf.control_dependencies([row]):
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
        """Stamps when the new values can be read, since a function reads a variable after it has assigned it."""
        with tf.device(device):
            values = [read(variable) for read in {self.read, variable_values.read_variable} for variable in variables] or [begin]
            with tf.control_dependencies(values):
                return stamps.when_computed(values[0], device)

    def _places(self):
        """Lists for each device of all replicas its name and the trainable variables that it updates, none of them twice."""
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
    """Returns for each of some devices the list of the variables that live there; of equal devices the first has them."""
    owners = [variable_placement.owner(variable, devices) for variable in variables]
    places = [devices.index(owner) if owner in devices else 0 for owner in owners]
    return [[variable for variable, place in zip(variables, places) if place == index] for index in range(len(devices))]
