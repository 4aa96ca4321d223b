"""How much memory a part of a graph needs while it runs: every tensor from the operation that makes it to its last reader."""

import collections
import math

import tensorflow as tf

_SAME_BUFFER = ('Identity', 'Reshape', 'Squeeze', 'ExpandDims', 'StopGradient')
# Operations that write their result into an input that nobody else reads; they take one that is as large as the result.
_IN_PLACE = frozenset((
    'Add', 'AddN', 'AddV2', 'BiasAdd', 'Elu', 'Erf', 'Exp', 'Log', 'Maximum', 'Minimum', 'Mul', 'Neg', 'RealDiv', 'Reciprocal',
    'Relu', 'ReluGrad', 'Rsqrt', 'RsqrtGrad', 'Select', 'SelectV2', 'Sigmoid', 'SigmoidGrad', 'Softmax', 'Softplus', 'Sqrt',
    'SqrtGrad', 'Square', 'SquaredDifference', 'Sub', 'Tanh', 'TanhGrad'))


class Buffers:
    """Which tensors are one in memory: views of another, and results of equal operations, which TensorFlow runs once.

    Args:
        operations: list of operations, each after those that it reads from; tensors that others make are told apart.
    """

    def __init__(self, operations):
        self._of, seen = {}, {}
        for operation in operations:
            if operation.type in _SAME_BUFFER:
                self._of[operation.outputs[0].ref()] = self[operation.inputs[0]]
                continue
            twin = seen.setdefault(self._key(operation), operation)
            self._of.update((mine.ref(), other.ref()) for mine, other in zip(operation.outputs, twin.outputs))

    def __getitem__(self, tensor):
        """Returns the reference of the tensor that stands for the buffer of `tensor`."""
        return self._of.get(tensor.ref(), tensor.ref())

    def is_first(self, operation):
        """Whether an operation is the one of its equals that runs, and makes something."""
        return all(self[tensor] == tensor.ref() for tensor in operation.outputs)

    def _key(self, operation):
        if operation.op_def.is_stateful or not operation.inputs:
            return operation
        return what(operation), tuple(self[tensor] for tensor in operation.inputs)


def what(operation):
    """Returns what an operation does, whatever its inputs are, as something to compare and to hash."""
    attributes = operation.node_def.attr
    return operation.type, tuple(sorted(
        (name, attributes[name].SerializeToString()) for name in attributes if not name.startswith('_')))


def size(tensors):
    """Returns the bytes of tensors, specs or variables; those without a shape, such as lists that loops keep, count nothing."""
    return sum(math.prod(tensor.shape) * tf.as_dtype(tensor.dtype).size for tensor in tensors
               if tf.TensorShape(tensor.shape).is_fully_defined())


def fullest_moment(operations, results):
    """Runs operations on paper, each as soon as its inputs are there, first come, first served, as TensorFlow's executor does.

    Args:
        operations: list of the operations that run.
        results: tensors that stay to the end.

    Returns:
        The most bytes that tensors made by these operations take at once.
    """
    run = _Run(operations, results)
    while run.ready:
        run.step(run.ready.popleft())
    return run.peak


class _Run:
    """The state of a run on paper.

    Args:
        operations: list of the operations that run, each after those that it reads from.
        results: tensors that stay to the end.
    """

    def __init__(self, operations, results):
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
        """Runs one operation whose inputs are there."""
        done = [ref.deref() for ref in self._read(operation) if self._readers[ref] == 1 and ref.deref().op in self._inside]
        needed, freed = size(operation.outputs), size(done)
        reused = needed if operation.type in _IN_PLACE and any(size([tensor]) == needed for tensor in done) else 0
        self._live += needed - reused
        self.peak = max(self.peak, self._live)
        self._live -= freed - reused + size(tensor for tensor in operation.outputs if not self._readers[tensor.ref()])
        self._readers.subtract(self._read(operation))
        for follower in self._followers[operation]:
            self._missing[follower] -= 1
            if not self._missing[follower]:
                self.ready.append(follower)

    def _read(self, operation):
        return {self._buffers[tensor] for tensor in operation.inputs}
