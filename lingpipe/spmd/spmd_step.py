"""Training step of an SPMD pipeline as one function of tensors."""

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from lingpipe.devices import collectives
from lingpipe.optimizers import device_placement, optimizer_parts, training_optimizer
from lingpipe.spmd import spmd_pipeline, stage_map
from lingpipe.spmd.stage_map import SpmdValues
from lingpipe.stages import losses, micro_batches

_CORES = ''  # no device: all cores of a replica work together


class SpmdState(NamedTuple):
    """Everything that a step changes."""

    values: SpmdValues  # the weights and other state of layers
    stage_slots: list  # for each weight of the stages, the list of the optimizer's slots `[K, V, ...]`
    outer_slots: list  # for each other weight, the list of its slots
    averages: SpmdValues  # the moving average of each of `values`, or empty lists
    step: tf.Tensor  # int64 scalar, the number of steps done

    def map(self, of_stages: Callable[[Any], Any], of_outer: Callable[[Any], Any]) -> 'SpmdState':
        """Apply `of_stages` to entries of stages, and `of_outer` to all other entries except `step`."""
        return SpmdState(
            self.values.map(of_stages, of_outer), [list(map(of_stages, slots)) for slots in self.stage_slots],
            [list(map(of_outer, slots)) for slots in self.outer_slots], self.averages.map(of_stages, of_outer),
            self.step)


_NO_AVERAGES = SpmdValues([], [], [], [])


class SpmdStep:
    """Training step of all stages in one program. The weights and slots of each stage stay on one core.

    Args:
        loss: function `(targets, outputs) -> {name: (sum, weight)}`, as `losses.as_metrics` returns it.
        optimizer: a Keras optimizer that has no slots yet.
        clip_gradient_norm_to_value: largest global norm of the gradients; 0: no clipping.
        replicas: the `collectives.Group` of replicas that run the step; None: one replica.
        moved: function `(average, value, step) -> average` that updates a moving average; None: no averages.
    """

    def __init__(self, pipeline: spmd_pipeline.SpmdPipeline, loss: Callable, optimizer: keras.optimizers.Optimizer,
                 seed: int = 0, clip_gradient_norm_to_value: float = 0.0, replicas: collectives.Group | None = None,
                 moved: Callable | None = None) -> None:
        self._pipeline, self._loss, self._seed = pipeline, loss, seed
        self._results = losses.results_of(loss)
        self._limit = clip_gradient_norm_to_value
        self._replicas, self._moved = replicas or collectives.Group(), moved
        self._optimizer = optimizer_parts.PureOptimizer(optimizer, pipeline.trainable_variables)

    def variables(self, average_of: Callable[[keras.Variable], Any] | None = None) -> SpmdState:
        """Return the variables that hold the state, as an `SpmdState` with `step=None`.

        Args:
            average_of: function from a variable to the variable that holds its moving average; None: no averages.
        """
        values, slots = self._pipeline.variables, self._optimizer.slots
        averages = _NO_AVERAGES
        if average_of:
            averages = values.map(lambda row: [[average_of(each) for each in core] for core in row], average_of)
        return SpmdState(
            values, [_slot_rows(slots, row) for row in values.stages], [slots(variable) for variable in values.outer],
            averages, None)

    def state_specs(self) -> SpmdState:
        """Return the `tf.TensorSpec` of each tensor of a state."""
        specs = self.variables().map(stage_map.spec_of_row, micro_batches.specs_of_tensors)
        return specs._replace(averages=specs.values if self._moved else _NO_AVERAGES, step=tf.TensorSpec([], tf.int64))

    def __call__(self, state: SpmdState, x: Any, targets: Any) -> tuple[SpmdState, dict[str, tf.Tensor]]:
        """Run one step. If the loss or a gradient is not finite, nothing changes.

        Args:
            state: `SpmdState` of tensors, the same on every replica.
            x: nest of tensors `[batch, ...]`, the rows of a replica.

        Returns:
            The new `SpmdState`, and {name: float32 scalar}. The dictionary has 'gradient_norm', and the mean of each
            metric over all replicas.
        """
        state = state.map(self._pipeline.place_stages, self._pipeline.place_outer)
        sums, stage_gradients, outer_gradients = self._gradients(state, x, targets)
        metrics = losses.means(sums, self._results)
        stage_gradients, outer_gradients, penalty = self._regularized(state.values, stage_gradients, outer_gradients)
        metrics['loss'] += penalty
        norm = tf.sqrt(tf.add_n([2.0 * tf.nn.l2_loss(each) for each in [*stage_gradients, *outer_gradients]]))
        scale = device_placement.clipping_factor(norm, self._limit) if self._limit else tf.ones([])
        learning_rate = self._optimizer.learning_rate(state.step)
        stages, stage_slots = self._update_stages(state, [each * scale for each in stage_gradients], learning_rate)
        outer, outer_slots = self._update_all(
            self._pipeline.variables.outer, state.values.outer, [each * scale for each in outer_gradients],
            state.outer_slots, state.step, learning_rate)
        values = state.values._replace(stages=stages, outer=outer)
        averages = _NO_AVERAGES
        if self._moved:
            averages = tf.nest.map_structure(
                lambda average, value: self._moved(average, value, state.step), state.averages, values)
        new = SpmdState(values, stage_slots, outer_slots, averages, state.step + 1)
        new = new.map(self._pipeline.place_stages, self._pipeline.place_outer)
        is_finite = training_optimizer.is_finite(metrics['loss'], norm)
        return (tf.nest.map_structure(lambda after, before: tf.where(is_finite, after, before), new, state),
                {**metrics, 'gradient_norm': norm})

    def _gradients(self, state, x, targets):
        """Return metric sums, gradients of stage weights, and gradients of other weights."""
        seed = tf.cast(self._seed + self._replicas.index_on(_CORES) * 2**32, tf.int64)
        weights = [state.values.stages, state.values.outer]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights)
            sums = self._pipeline.metrics(self._loss, state.values, x, targets, tf.stack([seed, state.step]))
        gradients = tape.gradient(sums['loss'][0], weights, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        sums, gradients = self._replicas.sum(_CORES, (sums, self._placed_gradients(gradients)))
        weight = sums['loss'][1]
        stages, outer = self._placed_gradients(tf.nest.map_structure(
            lambda gradient: tf.math.divide_no_nan(gradient, tf.cast(weight, gradient.dtype)), gradients))
        return sums, stages, outer

    def _regularized(self, values, stage_gradients, outer_gradients):
        """Add each regularizer's gradient to the gradient of its weight; also return the sum of all penalties."""
        place, firsts = self._pipeline.place_stages, [row[0][0] for row in self._pipeline.variables.stages]
        of_stages = [_stage_penalties(variable.regularizer, value) for variable, value in zip(firsts, values.stages)]
        of_outer = [_penalty(variable.regularizer, value)
                    for variable, value in zip(self._pipeline.variables.outer, values.outer)]
        stages = [place(one + other) for one, (_, other) in zip(stage_gradients, of_stages)]
        outer = [one + other for one, (_, other) in zip(outer_gradients, of_outer)]
        return stages, outer, sum((penalty for penalty, _ in [*of_stages, *of_outer]), tf.zeros([]))

    def _placed_gradients(self, gradients):
        stages, outer = gradients
        return list(map(self._pipeline.place_stages, stages)), list(map(self._pipeline.place_outer, outer))

    def _update_stages(self, state, gradients, learning_rate):
        """Update each stage separately."""
        first = [row[0][0] for row in self._pipeline.variables.stages]
        if not first:
            return [], []

        def update_rounds(given):
            rounds = zip(*[tf.unstack(tensor) for tensor in tf.nest.flatten(given)])
            updated = [self._update_all(first, *tf.nest.pack_sequence_as(given, each), state.step, learning_rate)
                       for each in rounds]
            return tf.nest.map_structure(lambda *each: tf.stack(each), *updated)

        return tf.vectorized_map(  # separately: some optimizers read the norm of a layer's weight
            update_rounds, (state.values.stages, gradients, state.stage_slots), fallback_to_while_loop=False)

    def _update_all(self, variables, values, gradients, slots, step, learning_rate):
        rows = zip(variables, values, gradients, slots)
        updated = [self._optimizer.update(*row, step, learning_rate) for row in rows]
        return [value for value, _ in updated], [new for _, new in updated]


def _penalty(regularizer, value):
    """Return the penalty of a weight, and the gradient of the penalty."""
    if regularizer is None:
        return tf.zeros([]), tf.zeros([], value.dtype)
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(value)
        penalty = regularizer(value)
    return tf.cast(penalty, tf.float32), tape.gradient(penalty, value)


def _stage_penalties(regularizer, values):
    """Return the penalty summed over all stages, and its gradient with respect to `values` `[K, V, ...]`."""
    if regularizer is None:
        return _penalty(None, values)

    def of_core(rounds):
        penalties, gradients = zip(*[_penalty(regularizer, value) for value in tf.unstack(rounds)])
        return tf.add_n(penalties), tf.stack(gradients)

    penalties, gradients = tf.vectorized_map(of_core, values, fallback_to_while_loop=False)
    return tf.reduce_sum(penalties), gradients


def _slot_rows(slots, variables):
    """Return K lists of V slots for each kind of slot, such as momentum."""
    rows = [[slots(variable) for variable in row] for row in variables]
    return [[[slot[index] for slot in row] for row in rows] for index in range(len(rows[0][0]))]
