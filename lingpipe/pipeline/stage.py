"""One partition at work: its layers as pure functions of (weights, state, inputs, seed, step, training)."""

import copy
import functools
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from lingpipe.distribute import device_calls, device_kinds, workers
from lingpipe.layers import replica_sums, training_step
from lingpipe.pipeline import batch_statistics, boundary, control_flow, stage_program


class Variables(NamedTuple):
    """One stage's variables, or as many values for them, by the part that they play.

    Attributes:
        weights: trainable variables.
        state: other variables that layers read and may change, in the order of the forward actions; not the moving
            averages of batch norm, which wait for the end of the mini-batch, nor seeds.
    """

    weights: list
    state: list

    def map(self, function):
        """Returns the same parts with `function` applied to every entry."""
        return Variables(*[[function(entry) for entry in part] for part in self])


class LayerSegment:
    """One layer of a sequence: what a stage runs as one piece, and may recompute by itself.

    Args:
        layer: built Keras layer.
    """

    call_index = 0

    def __init__(self, layer):
        self.layers = [layer]

    def __call__(self, inputs, training):
        return call_layers(self.layers, inputs, training)


class StageCall(NamedTuple):
    """What a stage computes from one micro-batch.

    Attributes:
        outputs: nest of tensors.
        between: list of nests, what passes from each segment to the next.
        statistics: statistics of batch norm in this micro-batch `[2, channels]`.
        state: list of the new values of `Variables.state`.
        losses: list of tensors that layers added with `add_loss` or by activity regularisers; each counts with its sum.
    """

    outputs: Any
    between: list
    statistics: tf.Tensor
    state: list
    losses: list


class Stage:
    """A contiguous run of layers on one device.

    Args:
        index: position of the stage in the pipeline.
        segments: list of functions `(nest, training) -> nest` to run one after the other, with attributes `layers` (the
            built Keras layers inside) and `call_index` (how often these were called before in the model).
        device: name of the device that holds the variables and does the work.
        seed_generators: every seed generator state of the whole model, in model order; a layer's place in this list
            picks its random numbers, so they do not depend on the stage that the layer is in.
        sources: where the entries of the input list come from: pairs (producer, position) of an earlier stage, or -1 for
            the pipeline's inputs; None: all that the stage before hands out, in its own structure.
        jit_compile: whether XLA compiles the stage's functions; on some kinds of devices it always does.
        num_replicas: number of devices that have the stage, this one among them.
    """

    def __init__(self, index, segments, device, seed_generators, sources=None, jit_compile=False, num_replicas=1):
        self.index = index
        self.segments = list(segments)
        self.device = device
        self.sources = sources
        self.jit_compile = jit_compile or device_kinds.must_compile(device)
        self.layers = _without_doubles(layer for segment in segments for layer in segment.layers)
        self._num_replicas, self._replica_sums = num_replicas, replica_sums.new_stage()
        self._num_seed_generators = len(seed_generators)
        own = seed_generator_states(self.layers)
        identities = [id(variable) for variable in seed_generators]
        self._own_seed_generators = [(identities.index(id(variable)), variable) for variable in own]
        self._programs = {}
        self._zeros = {}

    def on(self, device):
        """Returns the same stage at work on another device, for another replica: layers, variables and programs are shared.

        Args:
            device: name of the device, of the same kind.
        """
        replica = copy.copy(self)
        replica.device, replica._zeros = device, {}
        return replica

    @property
    def trainable_variables(self):
        return _without_doubles(variable for layer in self.layers for variable in layer.trainable_variables)

    @property
    def adds_losses(self):
        """Whether a layer added a loss in anything that was traced so far."""
        return any(program.trace.forward['losses'] for program in self._programs.values())

    def replica(self, index, micro_batch):
        """Returns what layers are told of the replica that they work for; None where there is only one.

        Args:
            index: int64 scalar tensor, the number of the replica.
            micro_batch: int64 scalar tensor, the number of the micro-batch in it.
        """
        num_replicas = self._num_replicas * workers.current().count
        if num_replicas == 1:
            return None
        return replica_sums.Replica(num_replicas, self._replica_sums, index, micro_batch, self.jit_compile)

    def trainability(self):
        """Returns what is not frozen now: another answer than before makes programs and layouts out of date."""
        return tuple(map(id, self.trainable_variables + batch_statistics.deferred_batch_norms(self.layers)))

    def statistics(self, training):
        """Returns the stage's `BatchStatistics`; nothing waits for the end of the batch in evaluation."""
        return batch_statistics.BatchStatistics(batch_statistics.deferred_batch_norms(self.layers) if training else [])

    def variables(self, training):
        """Returns the stage's Keras variables as `Variables`."""
        special = {id(variable) for variable in self.statistics(training).variables}
        special |= {id(variable) for _, variable in self._own_seed_generators}
        others = _without_doubles(variable for layer in self.layers for variable in layer.non_trainable_variables)
        return Variables(self.trainable_variables, [variable for variable in others if id(variable) not in special])

    def call(self, inputs, values, step, seeds, training):
        """Runs the layers on one micro-batch, touching no variable.

        Args:
            inputs: nest of tensors `[micro_batch, ...]`.
            values: `Variables` of tensors, in the order of `variables(training)`.
            step: int64 scalar tensor, the number of the training step.
            seeds: what `seeds` or `given_seeds` returned; all that random numbers depend on.
            training: Python boolean.

        Returns:
            `StageCall`.
        """
        variables, statistics = self.variables(training), self.statistics(training)
        mapping = list(zip(variables.weights + variables.state, values.weights + values.state))
        mapping += statistics.initial_values
        between = [inputs]
        with keras.StatelessScope(state_mapping=mapping, initialize_variables=False, collect_losses=True) as scope, \
                training_step.training_step(step):
            for segment in self.segments:
                for update in seeds(segment):
                    scope.add_update(update)
                between.append(_without_shared_tensors(segment(between[-1], training=training), between[-1]))
        new = scope.get_current_value
        return StageCall(between[-1], between[1:-1], statistics.of_micro_batch(new),
                         [new(variable) for variable in variables.state], list(scope.losses or []))

    def seeds(self, seed_and_step, micro_batch):
        """Draws the seeds of the stage's layers: every call of a layer in the model has its own.

        Args:
            seed_and_step: int64 tensor `[2]`.
            micro_batch: int64 scalar tensor.

        Returns:
            Function from a segment to the list of pairs (seed generator state, its value).
        """

        @functools.cache
        def rows(call_index):
            drawn = draw_seeds(seed_and_step, micro_batch, self._num_seed_generators, call_index)
            return [drawn[position] for position in self.seed_positions]

        return functools.partial(self._seeds_of_segment, rows)

    def given_seeds(self, rows):
        """Returns the seeds for `call` out of an int32 tensor `[own generators, 2]`, for layers that are called once."""
        return functools.partial(self._seeds_of_segment, lambda call_index: tf.unstack(rows))

    @property
    def seed_positions(self):
        """Places of the stage's own generators among those of the whole model."""
        return [position for position, _ in self._own_seed_generators]

    def _seeds_of_segment(self, rows, segment):
        used = {id(variable) for variable in seed_generator_states(segment.layers)}
        return [(variable, tf.cast(row, variable.dtype))
                for (_, variable), row in zip(self._own_seed_generators, rows(segment.call_index)) if id(variable) in used]

    def zeros(self, zero):
        """Returns, for each trainable variable, a tensor of its shape filled with `zero`, a float32 scalar that is 0."""
        if self.trainability() not in self._zeros:
            specs = [tf.TensorSpec(variable.shape, variable.dtype) for variable in self.trainable_variables]
            self._zeros[self.trainability()] = device_calls.one_call(
                self.device, lambda zero: [tf.fill(spec.shape, tf.cast(zero, spec.dtype)) for spec in specs])
        return self._zeros[self.trainability()](zero)

    def program(self, inputs, structure, targets, loss, training, by_layer=False):
        """Returns the `StageProgram` for these shapes, tracing it the first time.

        Args:
            inputs: `Boundary` of tensors `[micro_batch, ...]`, or of their specs.
            structure: `Structure` of the inputs.
            targets: nest of what `loss` compares the outputs with, on the last stage; () elsewhere.
            loss: function `(targets, outputs) -> {name: (sum, weight)}` on the last stage; None elsewhere.
            training: Python boolean.
            by_layer: whether the backward pass is to be cut at every segment, for recomputation in two levels.
        """
        specs = tf.nest.map_structure(lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype), (inputs, targets))
        nests = str(tf.nest.map_structure(lambda spec: 0, specs)) + str(structure)
        key = (nests, tuple(tf.nest.flatten(specs)), loss, training, by_layer, self.trainability())
        if key not in self._programs:
            with tf.device(None):  # not tf.init_scope, inside which no gradient tape records
                self._programs[key] = stage_program.StageProgram(self, specs, structure, loss, training, by_layer)
        return self._programs[key]


def call_layers(layers, inputs, training):
    """Calls layers one after the other; Keras hands `training` on to layers inside a layer that does not take it itself."""
    for layer in layers:
        inputs = control_flow.run(layer, functools.partial(layer, inputs, training=training))
    return inputs


def _without_shared_tensors(outputs, inputs):
    """Gives what a segment hands on unchanged a name of its own: else its gradient there would be that of all segments before."""
    shared = set(map(id, boundary.unpack(inputs).values))
    parts = boundary.unpack(outputs)
    values = [tf.identity(value) if id(value) in shared else value for value in parts.values]
    return boundary.pack(parts._replace(values=values), boundary.structure_of(outputs))


def draw_seeds(seed_and_step, micro_batch, count, call_index=0):
    """Draws seeds for all generators of a model.

    Args:
        seed_and_step: int64 tensor `[2]`.
        micro_batch: int64 scalar tensor.
        count: number of generators.
        call_index: how often their layers were called before in the model.

    Returns:
        int32 tensor `[count, 2]`.
    """
    seed = tf.random.experimental.stateless_fold_in(seed_and_step, micro_batch)
    if call_index:
        seed = tf.random.experimental.stateless_fold_in(seed, call_index)
    return tf.random.stateless_uniform([count, 2], seed, minval=None, maxval=None, dtype=tf.int32)


def seed_generator_states(layers):
    """Returns the states of all seed generators of some layers, in order."""
    return [variable for layer in layers for variable in layer.variables if variable.name == 'seed_generator_state']


def _without_doubles(objects):
    return list({id(entry): entry for entry in objects}.values())
