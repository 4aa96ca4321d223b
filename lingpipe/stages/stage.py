"""One partition at work: its layers as pure functions of (weights, state, inputs, seed, step, training)."""

import collections
import copy
import functools
import inspect
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from lingpipe.devices import collectives, device_kinds
from lingpipe.layers import base_layer
from lingpipe.stages import (
    batch_statistics,
    boundary,
    control_flow,
    graph_pieces,
    random_seeds,
    stage_program,
    stage_scope,
)

_NONE, _FEW = object(), 1000
_PLAIN = (type(None), bool, int, float, str)
_KERAS_ATTRIBUTES = frozenset(vars(keras.layers.Layer()))


class Variables(NamedTuple):
    """One stage's variables, or as many values for them, by the part that they play.

    Attributes:
        weights: trainable variables.
        state: other variables that layers read and may change, in the order of the forward actions; not seeds.
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
        position: place of the layer in the whole sequence.
    """

    call_index = 0

    def __init__(self, layer, position):
        self.layers = [layer]
        self.position = position

    def __call__(self, inputs, training):
        return call_layers(self.layers, inputs, training)


class StageCall(NamedTuple):
    """What a stage computes from one micro-batch.

    Attributes:
        outputs: nest of tensors.
        between: list of nests, what passes from each segment to the next.
        scope: the `stage_scope.StageScope`, which knows what was read and assigned.
        losses: list of tensors that layers added with `add_loss` or by activity regularisers; each counts with its sum.
    """

    outputs: Any
    between: list
    scope: stage_scope.StageScope
    losses: list


class Stage:
    """A contiguous run of layers on one device.

    Args:
        index: position of the stage in the pipeline.
        segments: list of functions `(nest, training) -> nest` to run one after the other, with attributes `layers` (the
            built Keras layers inside), `call_index` (how often these were called before in the model) and `position` (place
            in the model).
        device: name of the device that holds the variables and does the work.
        seed_generators: every seed generator state of the whole model, in model order; a layer's place in this list
            picks its random numbers, so they do not depend on the stage that the layer is in.
        sources: where the entries of the input list come from: pairs (producer, position) of an earlier stage, or -1 for
            the pipeline's inputs; None: all that the stage before hands out, in its own structure.
        jit_compile: whether XLA compiles the stage's functions; on some kinds of devices it always does.
        num_replicas: number of devices that have the stage, this one among them.
        keeps_rows: whether gradients of embeddings stay `step_sums.Rows`, as Keras's optimizers get them, and are not added up.
    """

    def __init__(self, index, segments, device, seed_generators, sources=None, jit_compile=False, num_replicas=1,
                 keeps_rows=False):
        self.index = index
        self.keeps_rows = keeps_rows
        self.segments = list(segments)
        self.device = device
        self.sources = sources
        self.jit_compile = jit_compile or device_kinds.must_compile(device)
        self.layers = _without_doubles(layer for segment in segments for layer in segment.layers)
        self._num_replicas, self._replica_sums = num_replicas, collectives.new_stage()
        self._num_seed_generators = len(seed_generators)
        own = random_seeds.seed_generator_states(self.layers)
        identities = [id(variable) for variable in seed_generators]
        self._own_seed_generators = [(identities.index(id(variable)), variable) for variable in own]
        self._programs = {}
        self._changing = set()  # places of attributes that layers change themselves, such as counters of calls
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

    @property
    def repeated_norms(self):
        """List of the batch norms that were called more than once in anything that was traced so far."""
        return [norm for program in self._programs.values() for norm, count in collections.Counter(
            program.trace.statistics.norms).items() if count > 1]

    def replica(self, index, micro_batch):
        """Returns what layers are told of the replica that they work for; None where there is only one.

        Args:
            index: int64 scalar tensor, the number of the replica.
            micro_batch: int64 scalar tensor, the number of the micro-batch in it.
        """
        num_replicas = self._num_replicas * collectives.current().count
        if num_replicas == 1:
            return None
        is_compiled = self.jit_compile or device_kinds.has_static_shapes_only(self.device)
        return collectives.Replica(num_replicas, self._replica_sums, index, micro_batch, is_compiled)

    def trainability(self):
        """Returns what is not frozen now, and how layers are set: with another answer, programs and layouts are out of date."""
        frozen = [norm.trainable for norm in batch_statistics.batch_norms(self.layers)]
        settings = [setting for place, setting in _settings(self.layers).items() if place not in self._changing]
        return (*map(id, self.trainable_variables), *frozen, *settings)

    def set_jit_compile(self, jit_compile):
        """Says whether XLA compiles the stage's functions; on some kinds of devices it always does."""
        self.jit_compile = jit_compile or device_kinds.must_compile(self.device)

    def forget_programs(self):
        """Has everything traced again: attributes of layers may have changed."""
        self._programs.clear()

    def variables(self):
        """Returns the stage's Keras variables as `Variables`."""
        special = {id(variable) for _, variable in self._own_seed_generators}
        special |= {id(variable) for variable in self.trainable_variables}
        others = _without_doubles(variable for layer in self.layers for variable in layer.variables)
        return Variables(self.trainable_variables, [variable for variable in others if id(variable) not in special])

    def call(self, inputs, values, step, seeds, training, by_layer=False, watch=lambda tensor: None):
        """Runs the layers on one micro-batch, touching no variable.

        Args:
            inputs: nest of tensors `[micro_batch, ...]`.
            values: `Variables` of tensors, in the order of `variables()`.
            step: int64 scalar tensor, the number of the training step.
            seeds: what `seeds` or `given_seeds` returned; all that random numbers depend on.
            training: Python boolean; None: what each layer takes for granted.
            by_layer: whether weights that several segments use are to be told apart, for their gradients.
            watch: function of a tensor, called with every value of a trainable variable that layers may read.

        Returns:
            `StageCall`.
        """
        between, scope = [inputs], stage_scope.StageScope(self.variables(), values, seeds, watch)
        with (scope, base_layer.training_step(step), scope.recording(batch_statistics.batch_norms(self.layers)),
              stage_scope.refusing_hidden_weights(scope)):
            for index, segment in enumerate(self.segments):
                scope.enter(segment, index, by_layer)
                between.append(_without_shared_tensors(segment(between[-1], training=training), between[-1]))
        return StageCall(between[-1], between[1:-1], scope, list(scope.added_losses))

    def seeds(self, seed_and_step, micro_batch):
        """Returns the `random_seeds.Seeds` of a micro-batch: every call of a layer in the model has its own.

        Args:
            seed_and_step: int64 tensor `[2]`.
            micro_batch: int64 scalar tensor.
        """
        def draw(call_index):
            drawn = random_seeds.draw_seeds(seed_and_step, micro_batch, self._num_seed_generators, call_index)
            return [drawn[position] for position in self.seed_positions]

        def draw_untracked(position, number):
            return random_seeds.draw_untracked_seed(seed_and_step, micro_batch, position, number)

        return random_seeds.Seeds(self._own_seed_generators, draw, draw_untracked)

    def given_seeds(self, rows):
        """Returns the seeds for `call` out of an int32 tensor `[own generators, 2]`, for layers that are called once."""
        return random_seeds.Seeds(self._own_seed_generators, lambda call_index: tf.unstack(rows))

    @property
    def seed_positions(self):
        """Places of the stage's own generators among those of the whole model."""
        return [position for position, _ in self._own_seed_generators]

    def zeros(self, zero, variables):
        """Returns, for each of some variables, a tensor of its shape filled with `zero`, a float32 scalar that is 0."""
        key = tuple(map(id, variables))
        if key not in self._zeros:
            specs = [tf.TensorSpec(variable.shape, variable.dtype) for variable in variables]
            self._zeros[key] = device_kinds.one_call(
                self.device, lambda zero: [tf.fill(spec.shape, tf.cast(zero, spec.dtype)) for spec in specs])
        return self._zeros[key](zero)

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
        key = (nests, tuple(tf.nest.flatten(specs)), loss, training, by_layer, tf.config.functions_run_eagerly())
        if (key, self.trainability()) not in self._programs:
            before = _settings(self.layers)
            with tf.device(None), graph_pieces.recording():  # not tf.init_scope, inside which no gradient tape records
                program = self._trace(specs, structure, loss, training, by_layer)
            self._changing |= {place for place, value in _settings(self.layers).items() if before.get(place) != value}
            self._programs[key, self.trainability()] = program
        return self._programs[key, self.trainability()]

    def _trace(self, *arguments):
        """A layer's own `tf.function` may have been traced before, with variables in it; laid out in its caller it has none."""
        trace = functools.partial(control_flow.until_traced, stage_program.StageProgram, self, *arguments)
        program = control_flow.past_moved_variables(trace)
        if not program.hidden_variables:
            return program
        with control_flow.functions_laid_out():
            program = trace()
        if program.hidden_variables:
            raise ValueError(f'A layer reads {[variable.path for variable in program.hidden_variables[:3]]} in a tf.function of its own, '
                             'which hands them no gradient inside a partition. Leave the function undecorated.')
        return program


def _settings(layers):
    """Returns what a trace takes for constants: numbers, texts, lists of them, functions, tables, tensors such as an adapted mean.

    They are in a dictionary whose keys are pairs of the id of a layer and the name of an attribute.
    """
    found = {(id(sublayer), name): _setting(value) for layer in layers for sublayer in layer._flatten_layers()
             for name, value in vars(sublayer).items() if not name.startswith('_') or _is_users(sublayer, name)}
    return {place: setting for place, setting in found.items() if setting is not _NONE}


def _is_users(layer, name):
    return type(layer).__module__.partition('.')[0] != 'keras' and name not in _KERAS_ATTRIBUTES


def _setting(value):
    if isinstance(value, _PLAIN) or inspect.isroutine(value) or isinstance(value, tf.lookup.StaticHashTable):
        return value
    if isinstance(value, tf.Tensor):
        return _NONE if tf.is_symbolic_tensor(value) else value.ref()
    if isinstance(value, np.ndarray):
        return id(value) if value.size > _FEW else value.tobytes()
    if isinstance(value, (list, tuple, dict)) and all(isinstance(leaf, _PLAIN) for leaf in tf.nest.flatten(value)):
        return repr(value)
    return _NONE


def call_layers(layers, inputs, training):
    """Calls layers one after the other; Keras hands `training` on to layers inside a layer that does not take it itself."""
    told = {} if training is None else {'training': training}
    for layer in layers:
        inputs = control_flow.run(layer, functools.partial(layer, inputs, **told))
    return inputs


def _without_shared_tensors(outputs, inputs):
    """Gives what a segment hands on unchanged a name of its own: else its gradient there would be that of all segments before."""
    shared = set(map(id, boundary.unpack(inputs).values))
    parts = boundary.unpack(outputs)
    values = [tf.identity(value) if id(value) in shared else value for value in parts.values]
    return boundary.pack(parts._replace(values=values), boundary.structure_of(outputs))


def _without_doubles(objects):
    return list({id(entry): entry for entry in objects}.values())
