"""A stage of a pipeline, and the programs of the stage."""

import copy
import inspect
import itertools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from lingpipe.devices import collectives, device_kinds
from lingpipe.stages import batch_statistics, boundary, graph_pieces, stage_layers, stage_program

# `_NONE` marks a value that no trace treats as a constant. Arrays of more than `_FEW` numbers are compared by identity.
_NONE, _FEW = object(), 1000
_PLAIN = (type(None), bool, int, float, str, np.generic)
_KERAS_ATTRIBUTES = frozenset(vars(keras.layers.Layer(dtype='float32')))  # without dtype, this would fix the policy

# Beginnings of types of operations that change nothing, or only curves and random numbers, whose order is free.
_HARMLESS = ('ReadVariableOp', 'VariableShape', 'VarIsInitialized', 'ResourceGather', 'LookupTableFind',
             'LookupTableSize', 'LookupTableExport', 'QueueSize', 'Write', 'FlushSummary', 'Rng', 'StatefulRandom',
             'StatefulUniform', 'StatefulStandardNormal', 'StatefulTruncatedNormal')
_NOT_FOR_XLA = ('LookupTable', 'String', 'StaticRegex', 'Unicode')  # beginnings of types of operations


class Stage:
    """Contiguous layers on one device.

    ::

        Stage ──> StageProgram      forward and backward functions for one set of shapes, cached here
          └─────> StageLayers       the layers from which the functions are traced

    Args:
        sources: for each input, a pair (stage, position) that names an output of an earlier stage. Stage -1 means the
            inputs of the pipeline. If `sources` is None, the input is the nest of outputs of the previous stage.
        jit_compile: whether XLA compiles the stage's functions. Some kinds of devices always compile the functions.
        num_replicas: number of devices that run the stage, including this device.
    """

    # chooses the tensors that recompute='selective' retains, see `StageProgram.select`; set before the first step
    selection: Callable

    def __init__(self, run: stage_layers.StageLayers, device: str, sources: list[tuple[int, int]] | None = None,
                 jit_compile: bool = False, num_replicas: int = 1) -> None:
        self._run, self.index, self.layers = run, run.index, run.layers
        self.device = device
        self.sources = sources
        self.jit_compile = jit_compile or device_kinds.must_compile(device)
        self._num_replicas, self._number = num_replicas, next(collectives.stage_numbers)
        self._programs: dict[tuple, stage_program.StageProgram] = {}
        self._changing: set[tuple[int, str]] = set()  # attributes that layers change themselves, such as call counters
        self._zeros: dict[tuple, Callable] = {}

    def on(self, device: str) -> 'Stage':
        """Return a copy for another device of the same kind. The copy shares all programs."""
        replica = copy.copy(self)
        replica.device, replica._zeros = device, {}
        return replica

    @property
    def trainable_variables(self) -> list[keras.Variable]:
        """The trainable Keras variables of the layers, without duplicates."""
        return self._run.trainable_variables

    def variables(self) -> stage_layers.Variables:
        """Return the stage's Keras variables as `Variables`."""
        return self._run.variables()

    @property
    def adds_losses(self) -> bool:
        """Whether a layer added a loss in any trace so far."""
        return any(program.trace.results.added for program in self._programs.values())

    @property
    def repeated_or_masked_norms(self) -> list[keras.layers.BatchNormalization]:
        """The batch norms that a traced program calls more than once or with a mask."""
        traces = [[(each.norm, each.is_masked) for each in program.trace.norm_calls]
                  for program in self._programs.values()]
        return [norm for calls in traces for norm, is_masked in calls
                if is_masked or [each for each, _ in calls].count(norm) > 1]

    def trainability(self) -> tuple:
        """Return a key that changes when settings or trainable variables of layers change."""
        frozen = [norm.trainable for norm in batch_statistics.batch_norms(self.layers)]
        fixed = [setting for place, setting in settings(sublayers(self.layers)).items() if place not in self._changing]
        return (*map(id, self.trainable_variables), *frozen, *fixed)

    def set_jit_compile(self, jit_compile: bool) -> None:
        """Set whether XLA compiles the stage's functions."""
        self.jit_compile = jit_compile or device_kinds.must_compile(self.device)

    def forget_programs(self) -> None:
        """Discard all programs. Changed attributes of layers then take effect."""
        self._programs.clear()

    def zeros(self, zero: tf.Tensor, variables: list[keras.Variable]) -> list[tf.Tensor]:
        """Return zeros in the shape and dtype of each variable. The scalar `zero` is `MicroBatchIds.zero`."""
        key = tuple(map(id, variables))
        if key not in self._zeros:
            specs = [tf.TensorSpec(variable.shape, variable.dtype) for variable in variables]
            self._zeros[key] = device_kinds.one_call(
                self.device, lambda zero: [tf.fill(spec.shape, tf.cast(zero, spec.dtype)) for spec in specs])
        return self._zeros[key](zero)

    def program(self, inputs: boundary.Boundary, structure: boundary.Structure, targets: Any, loss: Callable | None,
                training: bool | None, by_layer: bool = False) -> stage_program.StageProgram:
        """Return the `StageProgram` for these shapes, and trace the program if needed.

        Args:
            inputs: `Boundary` of tensors `[micro_batch, ...]`, or of their specs.
            targets: on the last stage, the nest that `loss` compares with the outputs; () on other stages.
            by_layer: whether recompute='layer' will call the program's `backward_segment`.
        """
        specs = tf.nest.map_structure(lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype), (inputs, targets))
        nests = str(tf.nest.map_structure(lambda spec: 0, specs)) + str(structure)
        key = (nests, tuple(tf.nest.flatten(specs)), loss, training, by_layer)
        trainability = self.trainability()
        if (key, trainability) not in self._programs:
            before = settings(sublayers(self.layers))
            with tf.device(None), graph_pieces.recording():  # not tf.init_scope, inside which no gradient tape records
                program = self._trace(specs, structure, loss, training, by_layer)
            after = settings(sublayers(self.layers))
            self._changing |= {place for place, value in after.items() if before.get(place) != value}
            trainability = self.trainability()  # without the settings that the trace has changed
            self._programs[key, trainability] = program
        return self._programs[key, trainability]

    def _replica(self, index: tf.Tensor, micro_batch: tf.Tensor) -> collectives.Replica | None:
        """Return the `Replica` for a micro-batch, or None if there is only one replica."""
        num_replicas = self._num_replicas * collectives.current().count  # of all pipelines that train together
        if num_replicas == 1:
            return None
        is_compiled = self.jit_compile or device_kinds.has_static_shapes_only(self.device)
        return collectives.Replica(num_replicas, self._number, index, micro_batch, is_compiled)

    def _trace(self, *arguments: Any) -> stage_program.StageProgram:
        program = stage_program.StageProgram(
            self._run, self.jit_compile, device_kinds.is_logical_core(self.device), self._replica, *arguments)
        _refuse_changes(program.graph, self.index)
        operations = program.graph.get_operations() if self.jit_compile else []
        names = [each.name for each in operations if each.type.startswith(_NOT_FOR_XLA)]
        if names:  # TensorFlow's own error may arrive as a CancelledError
            raise ValueError(f'{names[0]!r} looks up a table or reads texts, which XLA cannot compile '
                             '(jit_compile=True). Set jit_compile=False, or do it before the pipeline, in the input.')
        captured = {id(outer) for outer, _ in program.graph.captures}
        hidden = [variable.path for variable in itertools.chain(*self.variables())
                  if id(getattr(variable.value, 'handle', None)) in captured]  # unallocated variables have no handle
        if hidden:
            raise ValueError(f'A layer reads {hidden[:3]} in a concrete function of its own, so they receive no '
                             'gradient inside a partition. Leave out its get_concrete_function.')
        return program


def sublayers(layers: list[keras.layers.Layer]) -> list[keras.layers.Layer]:
    """Return `layers` and all layers inside them."""
    return [sublayer for layer in layers for sublayer in layer._flatten_layers()]


def settings(layers: list[keras.layers.Layer]) -> dict[tuple[int, str], Any]:
    """Return {(layer id, attribute name): value} for attributes that a trace treats as constants."""
    found = {(id(layer), name): _setting(value) for layer in layers for name, value in vars(layer).items()
             if not name.startswith('_') or _is_users(layer, name)}
    return {place: setting for place, setting in found.items() if setting is not _NONE}


def _is_users(layer: keras.layers.Layer, name: str) -> bool:
    return type(layer).__module__.partition('.')[0] != 'keras' and name not in _KERAS_ATTRIBUTES


def _setting(value: Any) -> Any:
    if inspect.isroutine(value) or isinstance(value, tf.lookup.StaticHashTable):
        return value
    if isinstance(value, tf.Tensor):
        return _NONE if tf.is_symbolic_tensor(value) else value.ref()
    if isinstance(value, np.ndarray):
        return id(value) if value.size > _FEW else value.tobytes()
    return repr(value) if _is_plain(value) else _NONE


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):  # whose keys may be anything
        return all(map(_is_plain, itertools.chain.from_iterable(value.items())))
    return isinstance(value, _PLAIN) or isinstance(value, (list, tuple)) and all(map(_is_plain, value))


def _refuse_changes(graph: tf.Graph, stage: int) -> None:
    """Raise ValueError if layers or loss change state that Keras does not manage."""
    captured = {inner.ref(): outer for outer, inner in graph.captures if inner.dtype == tf.resource}
    for operation in graph.get_operations() if captured else ():
        for place, tensor in enumerate(operation.inputs):
            if tensor.ref() in captured and _changes(graph, operation.node_def, place, len(operation.inputs)):
                raise ValueError(  # recomputing would change it again
                    f'A layer or loss of partition {stage} changes {_name(graph, captured[tensor.ref()])} by '
                    f'{operation.type}. Make it by add_weight, which is exact over micro-batches, or leave it out.')


def _changes(graph: tf.Graph, node: Any, place: int, num_inputs: int) -> bool:
    """Return whether an operation changes the variable or other resource at input `place`."""
    if node.op.startswith(_HARMLESS):
        return False
    bodies = [graph._get_function(name).cached_definition for name in graph_pieces.functions_of(node.attr.values())]
    return not bodies or any(_body_changes(graph, body, place, num_inputs) for body in bodies)


def _body_changes(graph: tf.Graph, body: Any, place: int, num_inputs: int) -> bool:
    arguments = body.signature.input_arg
    argument = arguments[place - num_inputs].name  # a branch lacks the first input, which chooses it
    for node in body.node_def:
        data = [name for name in node.input if not name.startswith('^')]
        if any(_changes(graph, node, place, len(data)) for place, name in enumerate(data) if name == argument):
            return True
    return False


def _name(graph: tf.Graph, outer: tf.Tensor) -> str:
    names = [variable.name for variable in graph.variables if variable.handle is outer]
    return f'the tf.Variable {names[0]!r}' if names else 'a table, an iterator or other state of TensorFlow'
