"""A schedule laid out over a row of devices as operations of one graph."""

import copy
from typing import NamedTuple

import tensorflow as tf

from lingpipe.pipeline import schedule as schedules


class Sums(NamedTuple):
    """What a run of the pipeline leaves behind, still in sums over the mini-batch.

    Attributes:
        metrics: dictionary from name to (sum, weight), on the last stage.
        weight_gradients: for each stage, the list of gradient sums of its weights.
        input_gradients: for each micro-batch, the list of gradients of its floating-point inputs; empty where not asked for.
    """

    metrics: dict
    weight_gradients: list
    input_gradients: list


class Execution:
    """One mini-batch on its way through the stages.

    Every device runs its actions in schedule order, each waiting for the one before it: this is what bounds memory. Only
    boundary tensors and their gradients cross between devices::

        device 0   F0 ─> F1 ─> F2 ......... B2 ─> B1 ─> B0
                   │     │     │            ^     ^     ^        ─>  order on a device (control edge)
                   v     v     v            │     │     │        │   boundary tensor, or its gradient
        device 1         F0 ─> F1 ─> F2 ─> B2 ─> B1 ─> B0

    Args:
        stages: list of `Stage`s.
        schedule: the `Schedule` to run.
        micro_batches: list of nests of tensors `[micro_batch, ...]`, the inputs of the first stage.
        targets: list of nests of tensors for `loss`, or None.
        loss: function `(targets, outputs) -> {name: (mean, weight)}` that runs on the last stage, or None.
        seed_and_step: int64 tensor `[2]`.
        training: Python boolean.
        values: for each stage its `Variables`, as tensors.
        recompute: 'none' or 'stage'.
        input_gradients_needed: whether gradients of the inputs of the first stage are wanted.
    """

    def __init__(self, stages, schedule, micro_batches, seed_and_step, training, values, recompute='stage', targets=None,
                 loss=None, input_gradients_needed=False):
        self._stages = stages
        self._schedule = schedule
        rows = [_rows(inputs) for inputs in micro_batches]
        self._equal_rows = all(isinstance(count, int) and count == rows[0] for count in rows)
        self._inputs = {(0, m): inputs for m, inputs in enumerate(micro_batches)}
        self._targets = targets or [()] * len(micro_batches)
        self._loss = loss
        with tf.device(stages[0].device):
            self._positions = _positions(seed_and_step, rows)
        self._training = training
        self._kept = schedule.backwards_after_own_forward() if recompute == 'stage' else schedule.backwards()
        self._input_gradients_needed = input_gradients_needed
        self._initial = values
        self._values = list(values)
        self._statistics = [_zero_statistics(stage, training) for stage in stages]
        self._saved, self._output_gradients, self._last, self._metrics = {}, {}, {}, []
        self._weight_gradients = [None] * len(stages)
        self._programs = {}

    def run(self, kinds=(schedules.FORWARD, schedules.BACKWARD)):
        """Lays out all actions of the given kinds."""
        for action in self._schedule.execution_order():
            if action.kind in kinds:
                stage = self._stages[action.stage]
                with tf.device(stage.device), self._after_previous(stage):
                    (self._forward if action.kind == schedules.FORWARD else self._backward)(stage, action)

    @property
    def num_micro_batches(self):
        """Number of micro-batches of this mini-batch."""
        return self._schedule.num_micro_batches

    @property
    def outputs(self):
        """For each micro-batch, the outputs of the last stage."""
        return [self._inputs[len(self._stages), m] for m in range(self.num_micro_batches)]

    @property
    def sums(self):
        """The `Sums` of all actions run so far."""
        with tf.device(self._stages[-1].device):
            metrics = tf.nest.map_structure(lambda *parts: tf.add_n(parts), *self._metrics) if self._metrics else {}
        first = [self._output_gradients.get((-1, m), []) for m in range(self.num_micro_batches)]
        return Sums(metrics, self._weight_gradients, first)

    def fork(self):
        """Returns a copy that goes on from here by itself: a gradient tape may ask for several backward passes."""
        fork = copy.copy(self)
        fork._saved, fork._output_gradients, fork._last = dict(self._saved), dict(self._output_gradients), dict(self._last)
        fork._weight_gradients = list(self._weight_gradients)
        return fork

    def give_output_gradients(self, gradients):
        """Hands in the gradients of `outputs`: for each micro-batch a list of tensors, one a floating-point output."""
        for m, gradient in enumerate(gradients):
            self._output_gradients[len(self._stages) - 1, m] = list(gradient)

    def state_updates(self):
        """Returns pairs (Keras variable, new value) of moving statistics and other state, after all forward actions."""
        updates = []
        for stage, values, statistics, initial in zip(self._stages, self._values, self._statistics, self._initial):
            with tf.device(stage.device):
                updates += stage.statistics(self._training).updates(statistics, read_variable)
            variables = stage.variables(self._training)
            updates += [(variable, value) for variable, value, old in zip(variables.state, values.state, initial.state)
                        if value is not old]
        return updates

    def _forward(self, stage, action):
        micro_batch = action.micro_batch
        arguments = {
            'inputs': self._inputs[stage.index, micro_batch],
            'targets': self._targets[micro_batch] if self._is_last(stage) else (),
            'statistics': self._statistics[stage.index],
            'values': self._values[stage.index],
            'position': self._positions[micro_batch]}
        results = self._program(stage).forward(arguments, self._keeps_residuals(action))
        self._values[stage.index] = self._values[stage.index]._replace(state=results['state'])
        self._statistics[stage.index] = results['statistics']
        self._inputs[stage.index + 1, micro_batch] = results['outputs']
        self._saved[stage.index, micro_batch] = arguments, results['residuals']
        if results['metrics']:
            self._metrics.append(results['metrics'])
        self._last[stage.device] = [results['operation']]

    def _backward(self, stage, action):
        position = (stage.index, action.micro_batch)
        arguments, residuals = self._saved.pop(position)
        has_loss = self._is_last(stage) and self._loss is not None
        output_gradients = [tf.ones([])] if has_loss else self._output_gradients.pop(position)
        input_gradients, sums, operation = self._program(stage).backward(
            arguments, residuals, output_gradients, self._weight_gradients[stage.index] or self._zeros(stage),
            stage.index > 0 or self._input_gradients_needed)
        self._output_gradients[stage.index - 1, action.micro_batch] = input_gradients
        self._weight_gradients[stage.index] = sums
        self._last[stage.device] = [operation]

    def _zeros(self, stage):
        """Zeros that TensorFlow does not know to be zero: it would keep them as constants, a second copy of the weights."""
        return stage.zeros(tf.cast(self._positions[0][2] != 0, tf.float32))

    def _is_last(self, stage):
        return stage is self._stages[-1]

    def _keeps_residuals(self, action):
        return action._replace(kind=schedules.BACKWARD) in self._kept

    def _program(self, stage):
        if stage.index not in self._programs:
            is_last = self._is_last(stage)
            inputs, targets = _specs((self._inputs[stage.index, 0], self._targets[0] if is_last else ()), self._equal_rows)
            self._programs[stage.index] = stage.program(inputs, targets, self._loss if is_last else None, self._training)
        return self._programs[stage.index]

    def _after_previous(self, stage):
        return tf.control_dependencies([operation for operation in self._last.get(stage.device, []) if operation is not None])


def _zero_statistics(stage, training):
    with tf.device(stage.device):
        spec = stage.statistics(training).spec
        return tf.zeros(spec.shape, spec.dtype)


def read_variable(variable):
    """Reads a Keras variable where it lives, when the current device scope names its device."""
    return variable.value.read_value()


def read_values(stages, training, read=read_variable):
    """Reads each stage's variables on its device.

    Args:
        stages: list of `Stage`s.
        training: Python boolean.
        read: function that gives the value to use for a Keras variable.

    Returns:
        List of `Variables` of tensors.
    """
    values = []
    for stage in stages:
        with tf.device(stage.device):
            values.append(stage.variables(training).map(read))
    return values


def assign(updates):
    """Assigns new values to Keras variables on their devices.

    Args:
        updates: list of pairs (variable, value).

    Returns:
        Empty list: nothing is left to assign.
    """
    for variable, value in updates:
        with tf.device(variable.value.device):
            variable.assign(value)
    return []


def _rows(nest):
    """Number of rows: a Python integer where it is known, else a tensor."""
    tensor = tf.nest.flatten(nest)[0]
    return tensor.shape[0] if tensor.shape[0] is not None else tf.shape(tensor)[0]


def _positions(seed_and_step, rows):
    """For each micro-batch: seed, step, its number, rows before it.

    They are sums with a value known at run time only: were they constants, TensorFlow would specialise and compile the
    functions of a stage once for every micro-batch.
    """
    start = tf.concat([tf.cast(seed_and_step, tf.int64), tf.zeros([2], tf.int64)], 0)
    positions, rows_before = [], 0
    for micro_batch, count in enumerate(rows):
        positions.append(start + tf.stack([0, 0, micro_batch, tf.cast(rows_before, tf.int64)]))
        rows_before = rows_before + count
    return positions


def _specs(nest, equal):
    """Specs of a micro-batch; where their sizes differ the number of rows is left open, so that one trace serves all."""
    return tf.nest.map_structure(
        lambda tensor: tf.TensorSpec(tensor.shape if equal else [None, *tensor.shape[1:]], tensor.dtype), nest)
