"""Model methods with caches for text generation, cut into pipeline stages."""

import inspect
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from lingpipe.devices import variable_placement
from lingpipe.stages import graph_pieces

_MIXED = ('The model uses its cache now by layers and now as a whole, which a pipeline does not support. Generate with '
          'the plain model.')


class Weights(NamedTuple):
    """The weights of a model, and the stages that they belong to."""

    variables: list[keras.Variable]
    stages: list[int]  # of each variable
    devices: list[str]  # of each stage

    def read(self, read: Callable[[keras.Variable], tf.Tensor]) -> list[list[tf.Tensor]]:
        """Return a list for each stage: the values of all variables, copied to the stage's device."""
        values = []
        for variable, stage in zip(self.variables, self.stages):
            with tf.device(variable_placement.owner(variable, [self.devices[stage]])):
                values.append(read(variable))
        return [self._on(stage, values) for stage in range(len(self.devices))]

    def _on(self, stage, values):
        with tf.device(self.devices[stage]):
            # TensorFlow copies a value only to the stages that use it.
            return [value if own == stage else tf.identity(value) for own, value in zip(self.stages, values)]


class Split(NamedTuple):
    """How a tensor of a cache is cut: into one part for each layer, or not at all."""

    axis: int | None  # along which the model stacks the caches of its layers; None: the cache is one part
    devices: list[str]  # of each part

    def cut(self, tensor: tf.Tensor) -> list[tf.Tensor]:
        """Return the parts of a whole cache, each on its device."""
        parts = []
        for index, device in enumerate(self.devices):
            with tf.device(device):
                parts.append(self._part(tensor, index))
        return parts

    def whole_spec(self, parts: list[tf.Tensor]) -> tf.TensorSpec:
        """Return the `tf.TensorSpec` of the whole cache."""
        shape = parts[0].shape.as_list()
        if self.axis is not None:
            shape.insert(self.axis, len(parts))
        return tf.TensorSpec(shape, parts[0].dtype)

    def _part(self, tensor, index):
        if self.axis is None:
            return tf.identity(tensor)
        if tensor.op.type == 'Fill':  # a new cache; no device should hold the zeros of all layers
            shape = tensor.shape.as_list()
            return tf.fill(shape[:self.axis] + shape[self.axis + 1:], tensor.op.inputs[1])
        return tf.gather(tensor, index, axis=self.axis)


class Parts(NamedTuple):
    """The parts of a cache. A model's loop over tokens carries these parts instead of the whole cache."""

    tensors: list[list[tf.Tensor]]  # the parts of each tensor of the cache, each part on its device


class CachedCall:
    """A method of a model, cut into the stages of a pipeline.

    ::

        token ids ─> operations that need weights of stage 0 ─> ... of stage 1 ─> logits, hidden states
                          ^                   │                  ^     │
                          │                   v                  │     v
                      cache[:, 0]        new cache 0     cache[:, 1]  new cache 1

    An operation belongs to the last stage whose weights it depends on. Data flow only to later stages. Between
    calls, the cache of each layer stays on the layer's device.

    Args:
        method: bound method of the model. Parameters whose names end in 'cache' are caches. The last results are the
            new values of the caches.
        jit_compile: whether XLA compiles the function of each stage.

    Attributes:
        splits: dictionary from the name of a cache to the `Split`s of its tensors. The first call fills it.
    """

    def __init__(self, method: Callable, weights: Weights, jit_compile: bool = False) -> None:
        self._method, self._weights, self._jit_compile = method, weights, jit_compile
        self._signature = inspect.signature(method)
        self._caches = [name for name in self._signature.parameters if name.endswith('cache')]
        self.splits: dict[str, list[Split]] = {}
        self._structures: dict[str, Any] = {}
        self._programs: dict[str, _Program] = {}

    def __call__(self, values: list[list[tf.Tensor]], *arguments: Any, **named: Any) -> Any:
        """Run the method in the current graph.

        Args:
            values: the result of `Weights.read`.
            *arguments, **named: arguments of the method. The first call for a text takes whole caches. Later
                calls take the `Parts` that the previous call returned.
        """
        bound = self._signature.bind(*arguments, **named)
        bound.apply_defaults()
        given = bound.arguments
        specs = {name: self._specs(name, value) for name, value in given.items()}
        key = str(specs)
        if key not in self._programs:
            self._programs[key] = self._trace(specs)
        parts = {name: self._parts(name, given.pop(name)) for name in self._caches}
        results, new = self._programs[key].run(values, given, parts)
        results += [Parts(new[name]) for name in self._caches]
        return tuple(results) if len(results) > 1 else results[0]

    def _specs(self, name, value):
        if not isinstance(value, Parts):
            return keras.tree.map_structure(_spec_of, value)
        wholes = iter([split.whole_spec(each) for split, each in zip(self.splits[name], value.tensors)])
        return keras.tree.map_structure(
            lambda spec: next(wholes) if isinstance(spec, tf.TensorSpec) else spec, self._structures[name])

    def _parts(self, name, cache):
        if isinstance(cache, Parts):
            return cache.tensors
        return [split.cut(tensor) for split, tensor in zip(self.splits[name], _tensors(cache))]

    def _trace(self, specs):
        program = _Program(self._method, self._weights, specs, self._caches)
        if not self.splits:
            self.splits = program.splits()
            self._structures = {name: specs[name] for name in self._caches}
        program.make_pieces(self.splits, self._jit_compile)
        return program


class _Program:
    """A traced method, cut into one piece for each stage."""

    def __init__(self, method, weights, specs, caches):
        self._weights = weights
        constants = {name: value for name, value in specs.items() if not _tensors(value)}

        def run(values, arguments):
            self._values = values
            self._arguments = {name: _tensors(value) for name, value in arguments.items()}
            mapping = list(zip(weights.variables, values))
            with keras.StatelessScope(state_mapping=mapping, initialize_variables=False):
                results = method(**arguments, **constants)
            results = list(results) if isinstance(results, (tuple, list)) else [results]
            num_others = len(results) - len(caches)
            self._results = results[:num_others]
            self._new = {name: _tensors(value) for name, value in zip(caches, results[num_others:])}

        tensors = {name: value for name, value in specs.items() if name not in constants}
        variables = [tf.TensorSpec(variable.shape, variable.dtype) for variable in weights.variables]
        self._concrete = tf.function(run, autograph=False).get_concrete_function(variables, tensors)  # keeps the graph
        self._stages = self._stages_of_operations()

    def _stages_of_operations(self):
        stages = {placeholder.op: stage for placeholder, stage in zip(self._values, self._weights.stages)}
        for operation in self._concrete.graph.get_operations():
            found = [stages[tensor.op] for tensor in operation.inputs if tensor.op in stages]
            if found:  # otherwise every piece that needs the operation computes it
                stages[operation] = max(found)
        return stages

    def _stage(self, tensor):
        """Return the index of the stage that computes a tensor."""
        return self._stages.get(tensor.op, len(self._weights.devices) - 1)  # the last if it depends on no weights

    def splits(self):
        """Return the `Split` of each tensor of each cache."""
        return {name: [self._split(old, new) for old, new in zip(self._arguments[name], tensors, strict=True)]
                for name, tensors in self._new.items()}

    def _split(self, old, new):
        axes = {axis for axis, _ in _slices(old).values()}
        is_stack = len(axes) == 1 and new.op.type == 'Pack' and axes == {new.op.get_attr('axis')}
        parts = new.op.inputs if is_stack else [new]
        return Split(axes.pop() if is_stack else None, [self._weights.devices[self._stage(part)] for part in parts])

    def make_pieces(self, splits, jit_compile):
        """Cut the graph into one piece for each stage."""
        rows = {name: list(zip(self._arguments[name], self._new[name], splits[name])) for name in splits}
        self._cache_feeds = {name: [_feeds(old, split) for old, _, split in rows[name]] for name in rows}
        self._new_parts = {name: [_new_parts(*row) for row in rows[name]] for name in rows}
        self._pieces = list(self._pieces_of_stages(jit_compile))

    def _pieces_of_stages(self, jit_compile):
        results = [*_tensors(self._results), *_flatten(_flatten(self._new_parts.values()))]
        others = [self._arguments[name] for name in self._arguments if name not in self._cache_feeds]
        feeds = [*self._values, *_flatten(others),
                 *[ref.deref() for numbers in _flatten(self._cache_feeds.values()) for ref in numbers]]
        given = {placeholder.op for placeholder in self._values}
        for stage, device in enumerate(self._weights.devices):
            outputs = [tensor for operation, own in self._stages.items() if own == stage and operation not in given
                       for tensor in operation.outputs
                       if any(self._stages.get(reader) != stage for reader in tensor.consumers())]
            outputs += [tensor for tensor in results if self._stage(tensor) == stage]
            yield graph_pieces.GraphPiece(
                self._concrete.graph, feeds, outputs, name=f'decode_{stage}', jit_compile=jit_compile,
                in_one_thread=tf.DeviceSpec.from_string(device).device_type == 'CPU' and not jit_compile)
            feeds += outputs

    def run(self, weights, arguments, parts):
        """Run all pieces, and return the results and the new parts of all caches."""
        values = {placeholder.ref(): tensor for name, value in arguments.items() if name in self._arguments
                  for placeholder, tensor in zip(self._arguments[name], _tensors(value))}
        for name, tensors in self._cache_feeds.items():
            for numbers, given in zip(tensors, parts[name]):
                values.update({ref: given[number] for ref, number in numbers.items()})
        for device, piece, brought in zip(self._weights.devices, self._pieces, weights):
            values.update({placeholder.ref(): value for placeholder, value in zip(self._values, brought)})
            with tf.device(device):
                values, _ = piece(values)
        results = keras.tree.map_structure(
            lambda leaf: values[leaf.ref()] if isinstance(leaf, tf.Tensor) else leaf, self._results)
        new = {name: [[values[tensor.ref()] for tensor in changed] or given
                      for changed, given in zip(tensors, parts[name])] for name, tensors in self._new_parts.items()}
        return results, new


def _feeds(old, split):
    """Return a dictionary {slice of a cache: index of the part that replaces this slice}."""
    if split.axis is None:
        return {old.ref(): 0}
    found = _slices(old)
    if not found and _readers(old) or any(axis != split.axis for axis, _ in found.values()):
        raise NotImplementedError(_MIXED)
    return {ref: index for ref, (_, index) in found.items()}


def _new_parts(old, new, split):
    """Return the new parts of a cache's tensor, or [] if the tensor does not change."""
    if new is old:
        return []
    if split.axis is None:
        return [new]
    if new.op.type != 'Pack' or new.op.get_attr('axis') != split.axis:
        raise NotImplementedError(_MIXED)
    return list(new.op.inputs)


def _readers(tensor):
    return [operation for operation in tensor.consumers()
            if operation.type != 'Shape' or not tensor.shape.is_fully_defined()]  # known shapes do not count


def _slices(cache):
    """Return a dictionary {slice: (axis, index)} of all slices that a model reads from a cache."""
    found = {operation.outputs[0].ref(): _slice_of(operation) for operation in _readers(cache)}
    return {} if None in found.values() else found  # None: an operation reads the cache in another way


def _slice_of(operation):
    """Return (axis, index) of an operation such as `cache[:, 3]`, or None for any other operation."""
    if operation.type != 'StridedSlice':
        return None
    whole, begin, _, strides = [tensor if place == 0 else tf.get_static_value(tensor)
                                for place, tensor in enumerate(operation.inputs)]
    shrunk, size = operation.get_attr('shrink_axis_mask'), whole.shape.as_list()
    axis = shrunk.bit_length() - 1
    has_axes_before = not (operation.get_attr('ellipsis_mask') | operation.get_attr('new_axis_mask')) & (shrunk - 1)
    if axis < 0 or shrunk != 1 << axis or not has_axes_before or (strides != 1).any():
        return None
    takes_all_else = operation.outputs[0].shape.as_list() == size[:axis] + size[axis + 1:]
    return (axis, int(begin[axis]) % size[axis]) if takes_all_else else None


def _flatten(nests: Iterable) -> list:
    return [leaf for nest in nests for leaf in nest]


def _tensors(nest):
    """List the tensors and tensor specs in a nest."""
    return [leaf for leaf in keras.tree.flatten(nest) if isinstance(leaf, (tf.Tensor, tf.TensorSpec))]


def _spec_of(leaf):
    return tf.TensorSpec(leaf.shape, leaf.dtype) if isinstance(leaf, tf.Tensor) else leaf
