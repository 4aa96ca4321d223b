"""Memory that layers need for one micro-batch, found by tracing without allocating."""

import collections
from collections.abc import Iterable
from typing import Any, NamedTuple

import tensorflow as tf

from lingpipe import hyperparams, schedules
from lingpipe.partition import layer_analysis, tensor_sizes
from lingpipe.schedules import timeline
from lingpipe.stages import graph_pieces

# Operations whose result is the buffer of their first input.
SAME_BUFFER = ('Identity', 'Reshape', 'Squeeze', 'ExpandDims', 'StopGradient')
# Operations that write their result into an input of the same size that nothing else reads.
_IN_PLACE = frozenset((
    'Add', 'AddN', 'AddV2', 'BiasAdd', 'Elu', 'Erf', 'Exp', 'Log', 'Maximum', 'Minimum', 'Mul', 'Neg', 'RealDiv',
    'Reciprocal', 'Relu', 'ReluGrad', 'Rsqrt', 'RsqrtGrad', 'Select', 'SelectV2', 'Sigmoid', 'SigmoidGrad', 'Softmax',
    'Softplus', 'Sqrt', 'SqrtGrad', 'Square', 'SquaredDifference', 'Sub', 'Tanh', 'TanhGrad'))


class Buffers:
    """A map from tensors to memory buffers.

    A view shares the buffer of its source. The results of equal operations share a buffer.

    Args:
        operations: operations in an order of execution.
    """

    def __init__(self, operations: Iterable[tf.Operation]) -> None:
        self._of: dict[Any, Any] = {}
        seen: dict[Any, tf.Operation] = {}
        for operation in operations:
            if operation.type in SAME_BUFFER:
                self._of[operation.outputs[0].ref()] = self[operation.inputs[0]]
                continue
            twin = seen.setdefault(self._key(operation), operation)  # equal operations run only once
            self._of.update((mine.ref(), other.ref()) for mine, other in zip(operation.outputs, twin.outputs))

    def __getitem__(self, tensor: tf.Tensor) -> Any:
        """Return `ref()` of the first tensor that has the same buffer as `tensor`."""
        return self._of.get(tensor.ref(), tensor.ref())

    def is_first(self, operation: tf.Operation) -> bool:
        """Return whether all outputs of an operation have new buffers."""
        return all(self[tensor] == tensor.ref() for tensor in operation.outputs)

    def _key(self, operation):
        if operation.op_def.is_stateful or not operation.inputs:
            return operation
        return what(operation), tuple(self[tensor] for tensor in operation.inputs)


def what(operation: tf.Operation) -> tuple:
    """Return a hashable description of an operation, without its inputs."""
    attributes = operation.node_def.attr
    return operation.type, tuple(sorted(
        (name, attributes[name].SerializeToString()) for name in attributes if not name.startswith('_')))


def size(tensors: Iterable[Any], tensor_size: tensor_sizes.TensorSize = tensor_sizes.plain_size) -> int:
    """Return the bytes of tensors, specs or variables. A tensor of unknown shape counts 0."""
    return sum(tensor_size(tf.TensorShape(tensor.shape), tf.as_dtype(tensor.dtype)) for tensor in tensors
               if tf.TensorShape(tensor.shape).is_fully_defined())


def fullest_moment(operations: list[tf.Operation], results: Iterable[tf.Tensor],
                   tensor_size: tensor_sizes.TensorSize = tensor_sizes.plain_size) -> int:
    """Simulate a run of operations, and return the peak bytes of their tensors.

    Args:
        results: tensors that stay in memory until the end.
    """
    run = _Run(operations, results, tensor_size)
    while run.ready:  # as in TensorFlow's executor, operations start as soon as their inputs are ready
        run.step(run.ready.popleft())
    return run.peak


class _Run:
    """State of a simulated run of operations."""

    def __init__(self, operations, results, tensor_size):
        self._tensor_size = tensor_size
        self._buffers = Buffers(operations)
        operations = [operation for operation in operations if self._buffers.is_first(operation)]
        self._inside, self._readers = set(operations), collections.Counter()
        self._missing, self._followers = {}, collections.defaultdict(list)
        for operation in operations:
            makers = {ref.deref().op for ref in self._read(operation)} & self._inside
            self._missing[operation] = len(makers)
            for maker in makers:
                self._followers[maker].append(operation)
            self._readers.update(self._read(operation))
        self._readers.update({self._buffers[tensor] for tensor in results})
        self.ready = collections.deque(operation for operation in operations if not self._missing[operation])
        self._live, self.peak = 0, 0

    def step(self, operation):
        """Run one operation whose inputs are ready."""
        done = [ref.deref() for ref in self._read(operation)
                if self._readers[ref] == 1 and ref.deref().op in self._inside]
        needed, freed = self._size(operation.outputs), self._size(done)
        reused = needed if operation.type in _IN_PLACE and any(self._size([tensor]) == needed for tensor in done) else 0
        self._live += needed - reused
        self.peak = max(self.peak, self._live)
        unread = [tensor for tensor in operation.outputs if not self._readers[tensor.ref()]]
        self._live -= freed - reused + self._size(unread)
        self._readers.subtract(self._read(operation))
        for follower in self._followers[operation]:
            self._missing[follower] -= 1
            if not self._missing[follower]:
                self.ready.append(follower)

    def _size(self, tensors):
        return size(tensors, self._tensor_size)

    def _read(self, operation):
        return {self._buffers[tensor] for tensor in operation.inputs}


class LayerMemory(NamedTuple):
    """Bytes of a layer's variables, and of the layer's tensors for one micro-batch.

    To count a shared tensor once, a partition subtracts the `repeated` bytes of all its layers except the first.
    """

    weights: int  # its trainable variables
    state: int  # its other variables, such as moving averages
    inputs: int  # inputs of a partition that begins with it
    internals: int  # tensors that it computes and its backward pass reads, except its outputs
    outputs: int  # its outputs, except those that are its inputs
    read_inputs: int = 0  # `inputs` that backward passes read, or what one operation computes from them
    read_outputs: int = 0  # outputs that its own backward pass reads
    repeated_inputs: int = 0  # `inputs` that an earlier layer also receives
    repeated_reads: int = 0  # `read_inputs` that an earlier layer retains
    # the peak of its backward pass in addition to what was kept, including gradients of outputs, inputs and weights;
    # the peak of its forward pass, if it has no backward pass
    backward: int = 0
    recomputed: int = 0  # the same if only its inputs were kept, so that a forward pass is run first


class Passage(NamedTuple):
    """The tensors that pass through one layer."""

    inputs: list  # bytes of its inputs
    # what its backward pass reads of its inputs: (position, None or what one operation computed from the input, bytes)
    read_inputs: list
    read_outputs: list  # positions of the outputs that its backward pass reads
    sources: list  # for each output, the position of the input that it equals, or None if it was computed


def live_micro_batches(schedule: schedules.Schedule) -> list[int]:
    """Return for each stage the largest number of micro-batches whose activations are in memory."""
    live: collections.Counter[int] = collections.Counter()
    most = [1] * schedule.num_stages
    for action in (action for device in schedule.device_actions for action in device):
        # If split, all activations count until the weight-gradient action, which reads only part of them.
        is_done = action.kind == (timeline.WEIGHT if schedule.is_split(action) else timeline.BACKWARD)
        live[action.stage] += (action.kind == timeline.FORWARD) - is_done
        most[action.stage] = max(most[action.stage], live[action.stage])
    return most


def layer_memories(layer_params: list[hyperparams.InstantiableParams], input_specs: Any,
                   tensor_size: tensor_sizes.TensorSize = tensor_sizes.plain_size) -> list[LayerMemory]:
    """Return the `LayerMemory` of each layer of a stack. No weight is allocated.

    Args:
        input_specs: nest of `tf.TensorSpec` `[micro_batch, ...]` of the input. Every dimension is known.
    """
    def look(layer, specs):
        memory, passage, specs = measure(layer, specs, tensor_size)
        return (memory, passage), specs

    memories, passages = map(list, zip(*layer_analysis.look_at_each(layer_params, input_specs, look)))
    names = [[(index, place) for place in range(len(passage.inputs))] for index, passage in enumerate(passages)]
    last = [(len(names), place) for place in range(len(passages[-1].sources))]
    return count_once(memories, passages, names, [*names[1:], last])


def count_once(memories: list[LayerMemory], passages: list[Passage], inputs: list[list],
               outputs: list[list]) -> list[LayerMemory]:
    """Return `memories` with new values in the fields about inputs, so that a partition can count each tensor once.

    Args:
        inputs: for each layer, the names of its input values.
        outputs: for each layer, the names of its output values.
    """
    buffers: dict[Any, Any] = {}
    sizes: dict[Any, int] = {}
    made: dict[Any, int] = {}
    first_kept: dict[Any, int] = {}
    walks = []
    for index, (passage, received, handed_on) in enumerate(zip(passages, inputs, outputs)):
        entering = [buffers.setdefault(name, name) for name in received]
        leaving = [name if source is None else entering[source] for name, source in zip(handed_on, passage.sources)]
        buffers.update(zip(handed_on, leaving))
        sizes.update(zip(entering, passage.inputs))
        kept = {(entering[place], made_of_it) if made_of_it else entering[place]: num_bytes
                for place, made_of_it, num_bytes in passage.read_inputs}
        sizes.update(kept)
        read = set(kept)
        for name in read | {leaving[place] for place in passage.read_outputs}:
            first_kept.setdefault(name, index)
        for name in leaving:
            made.setdefault(name, -1 if name in sizes else index)
        walks.append((set(entering), read))
    return _told_apart(memories, sizes, made, first_kept, walks)


def _told_apart(memories, sizes, made, first_kept, walks):
    """Return `memories` with new values in the four fields about inputs."""
    # Inputs are tensors that exist before the layer and that the layer, or a later one, receives. They are repeated if
    # the previous layer did not make them, because a partition that begins with that layer receives them too.
    entering, read_later, results = set(), set(), []
    for index, (memory, (received, read)) in reversed(list(enumerate(zip(memories, walks)))):
        entering = {name for name in entering | received if made.get(name, -1) < index}
        repeated = {name for name in entering if made.get(name, -1) < index - 1} if index else set()
        repeated_reads = {name for name in read_later | read if first_kept[name] < index}
        results.append(memory._replace(**{field: sum(map(sizes.get, names)) for field, names in (
            ('inputs', entering), ('repeated_inputs', repeated), ('read_inputs', read | repeated_reads),
            ('repeated_reads', repeated_reads))}))
        read_later = repeated_reads
    return results[::-1]


def measure(layer: Any, specs: Any, tensor_size: tensor_sizes.TensorSize = tensor_sizes.plain_size,
            has_backward: bool = True) -> tuple[LayerMemory, Passage, Any]:
    """Return the `LayerMemory`, `Passage` and output specs of a single built layer.

    Args:
        has_backward: whether this layer or an earlier layer has a trained weight.
    """
    traced = _Traced(layer_analysis.trace(layer, specs, has_backward), tensor_size)
    memory = traced.memory()
    memory = memory._replace(
        backward=memory.backward if has_backward else memory.recomputed,
        weights=size((variable for variable in layer.variables if variable.trainable), tensor_size),
        state=size((variable for variable in layer.weights if not variable.trainable), tensor_size))
    return memory, traced.passage(), traced.trace.output_specs


class _Traced:
    """The tensors of a layer's forward and backward pass."""

    def __init__(self, trace, tensor_size):
        self.trace, self._tensor_size = trace, tensor_size
        self._graph, self._given, self._gradients = trace.graph, trace.given, trace.wanted
        self._inputs, self._output_bytes = trace.inputs, size(trace.outputs, tensor_size)
        self._backward = graph_pieces.descendants(self._graph, self._given)
        self._needed = graph_pieces.ancestors(self._gradients)
        self._forward = [operation for operation in self._graph.get_operations() if operation not in self._backward]
        self._backward |= graph_pieces.repeated_pools(self._backward)
        self._buffers = Buffers(self._forward)
        self._sources = [self._buffers[tensor] for tensor in trace.outputs]
        self._read = self._read_by_backward()

    def memory(self):
        """Return the `LayerMemory`, without weights and state."""
        return LayerMemory(
            weights=0, state=0, inputs=size(self._inputs, self._tensor_size), outputs=self._output_bytes,
            internals=self._size(self._read - self._own_outputs() - {ref for ref, *_ in self._read_of_inputs()}),
            read_inputs=sum(num_bytes for *_, num_bytes in self._read_of_inputs()),
            read_outputs=self._size(self._own_outputs() & self._read),
            backward=self._fullest_moment(self._needed & self._backward),
            recomputed=self._fullest_moment(self._needed))

    def passage(self):
        """Return the `Passage`."""
        places = {tensor.ref(): place for place, tensor in enumerate(self._inputs)}
        own = self._own_outputs() & self._read
        return Passage(
            [size([tensor], self._tensor_size) for tensor in self._inputs], [row[1:] for row in self._read_of_inputs()],
            [place for place, ref in enumerate(self._sources) if ref in own],
            [places.get(ref) for ref in self._sources])

    def _own_outputs(self):
        return set(self._sources) - {tensor.ref() for tensor in self._graph.inputs}

    def _read_of_inputs(self):
        """Return a row for each residual that is a layer input, or that one operation computes from a layer input."""
        places = {tensor.ref(): place for place, tensor in enumerate(self._inputs)}
        # Each row is (residual, input index, `what` or None, bytes).
        rows = [(ref, places[ref], None, self._size([ref])) for ref in self._read & set(places)]
        for ref in self._read - set(places) - self._own_outputs():
            operation = ref.deref().op
            if len(operation.inputs) != 1 or operation.op_def.is_stateful:
                continue
            source = self._buffers[operation.inputs[0]]
            if source in places:
                rows.append((ref, places[source], what(operation), self._size([ref])))
        return rows

    def _fullest_moment(self, operations):
        """Return the peak bytes while `operations` run, including the gradients of the outputs."""
        stops = {tensor.op for tensor in [*self._graph.inputs, *self._given]}
        ordered = [operation for operation in self._graph.get_operations() if operation in operations - stops]
        gradients = size(self._given, self._tensor_size)  # count throughout, because they are arguments
        return gradients + fullest_moment(ordered, self._gradients, self._tensor_size)

    def _read_by_backward(self):
        """Return the references of all residuals, except weights."""
        forward = graph_pieces.descendants(self._graph, self._graph.inputs) - self._backward
        read = {self._buffers[tensor] for operation in self._needed & self._backward for tensor in operation.inputs
                if tensor.op in forward}
        return read - {tensor.ref() for tensor in self._graph.inputs[len(self._inputs):]}

    def _size(self, references):
        return size((reference.deref() for reference in references), self._tensor_size)
