"""The kernels that a GPU runs for a layer, found by tracing.

Compilers and kernel libraries fuse the operations between two matrix products. A tensor goes through memory only
between two kernels::

    x ─┬─> [norm] ──> (product) ──> [bias, split] ──> (product) ──> [scale, softmax] ──> (product) ──> [bias, +] ──>
       └─────────────────────────────────────────────────────────────────────────────────────────────────┘

A backward pass recomputes tensors of the forward pass that no kernel wrote to memory.
"""

import collections
import math
from typing import Any, NamedTuple

import tensorflow as tf

from lingpipe import hyperparams
from lingpipe.partition import layer_analysis, layer_memory
from lingpipe.stages import graph_pieces

# Libraries of matrix products take operands, and return results, in any order of their axes.
_VIEWS = frozenset((
    'ExpandDims', 'Identity', 'IdentityN', 'PreventGradient', 'Reshape', 'Squeeze', 'StopGradient', 'Transpose'))
_POOLS = frozenset((
    'AvgPool', 'AvgPool3D', 'AvgPool3DGrad', 'AvgPoolGrad', 'MaxPool', 'MaxPool3D', 'MaxPool3DGrad', 'MaxPoolGrad'))
_READ_IN_PART = frozenset(('Gather', 'GatherNd', 'GatherV2', 'Slice', 'StridedSlice'))
_ALIGNMENT = 16


class Product(NamedTuple):
    """The sizes of a matrix product `[rows, depth] x [depth, columns]`, or of a convolution."""

    rows: int
    columns: int
    depth: float  # inner dimension; for a convolution, its mean
    num_products: int  # how many products of this size the operation consists of
    dtype: str  # name of the dtype of the result
    # whether the rows of all three matrices in memory begin at multiples of 16 bytes, which tensor cores need to be
    # fast (NVIDIA, Matrix Multiplication Background User's Guide, section 2.2)
    is_aligned: bool


class Kernel(NamedTuple):
    """Operations that run as one program on the GPU."""

    num_bytes: int  # bytes that it reads from memory and writes there
    product: Product | None


class LayerKernels(NamedTuple):
    """The kernels of one layer for one micro-batch."""

    forward: list[Kernel]
    backward: list[Kernel]  # if the results of the forward pass are retained
    recomputed: list[Kernel]  # kernels of `forward` that the gradients depend on


def layer_kernels(layer_params: list[hyperparams.InstantiableParams], input_specs: Any) -> list[LayerKernels]:
    """Return the `LayerKernels` of each layer in a stack, without allocating weights."""
    return layer_analysis.look_at_each(layer_params, input_specs, find)


def find(layer: Any, specs: Any, has_backward: bool = True) -> tuple[LayerKernels, Any]:
    """Return the `LayerKernels` and output specs of a built layer. The weights need no values."""
    trace = layer_analysis.trace(layer, specs, has_backward)
    return _Fused(trace).kernels(), trace.output_specs


class _Fused:
    """The operations of a traced layer, grouped into kernels."""

    def __init__(self, trace):
        self._trace, self._graph = trace, trace.graph
        given = {tensor.op for tensor in trace.given}
        self._backward = graph_pieces.descendants(trace.graph, trace.given) - given
        changing = graph_pieces.descendants(trace.graph, trace.graph.inputs) | self._backward
        needed = graph_pieces.ancestors([*trace.outputs, *trace.wanted])
        stops = given | {tensor.op for tensor in trace.graph.inputs}
        self._operations = [operation for operation in trace.graph.get_operations()
                            if operation in needed & changing - stops]
        self._sources = {}
        for operation in self._operations:
            if operation.type in _VIEWS:
                self._sources.update((mine.ref(), self._source(other)) for mine, other in zip(
                    operation.outputs, operation.inputs))
        self._operations = [operation for operation in self._operations if operation.type not in _VIEWS]
        self._first = self._first_of_each()
        self._in_memory = {tensor.ref() for operation in stops for tensor in operation.outputs} | self._written()

    def kernels(self):
        """Return the `LayerKernels`."""
        parts = collections.defaultdict(list)
        for operation in self._operations:
            parts[self._first[operation]].append(operation)
        found = {first: self._kernel(set(operations)) for first, operations in parts.items()}
        forward, recomputed = (self._firsts(graph_pieces.ancestors(tensors)) - self._backward
                               for tensors in (self._trace.outputs, self._trace.wanted))
        if not self._trace.given:
            recomputed = set()
        return LayerKernels(*(
            [kernel for first, kernels in found.items() if first in firsts for kernel in kernels]
            for firsts in (forward, found.keys() - forward, recomputed)))

    def _firsts(self, operations):
        return {self._first[operation] for operation in operations if operation in self._first}

    def _source(self, tensor):
        """Return `tensor.ref()`; if the tensor is a reshape or another view, return `ref()` of the original tensor."""
        return self._sources.get(tensor.ref(), tensor.ref())

    def _makers(self, operation):
        makers = (self._source(tensor).deref().op for tensor in operation.inputs)
        return [maker for maker in makers if maker in self._levels]

    def _first_of_each(self):
        """Return a dictionary from each operation to the first operation of its kernel."""
        # Neighbours of one pass are fused if they come after equally many products, as operations before and after a
        # product cannot be one kernel.
        self._levels, first = {}, {}
        for operation in self._operations:
            makers = self._makers(operation)
            self._levels[operation] = max((self._levels[maker] + self._is_alone(maker) for maker in makers), default=0)
            first[operation] = operation
            for maker in [] if self._is_alone(operation) else makers:
                if self._can_join(maker, operation):
                    one, other = _root(first, maker), _root(first, operation)
                    first[other] = one
        return {operation: _root(first, operation) for operation in self._operations}

    def _can_join(self, maker, operation):
        return (not self._is_alone(maker) and self._levels[maker] == self._levels[operation]
                and (maker in self._backward) == (operation in self._backward))

    def _is_alone(self, operation):
        """Return whether an operation is always a kernel of its own."""
        return bool(operation.type in _POOLS or layer_analysis.multiply_adds(operation)
                    or layer_analysis.called_graphs(operation, self._graph))

    def _written(self):
        """Return the references of the tensors that kernels write to memory."""
        written = {self._source(tensor) for tensor in [*self._trace.outputs, *self._trace.wanted]}
        for operation in self._operations:
            is_alone = self._is_alone(operation)
            written.update(tensor.ref() for tensor in operation.outputs if is_alone)
            for source in map(self._source, operation.inputs):
                maker = source.deref().op
                is_near = (maker in self._backward) == (operation in self._backward)
                if maker in self._first and (is_alone or is_near and self._first[maker] != self._first[operation]):
                    written.add(source)
        return written

    def _reads(self, operations):
        """Return the tensors that a kernel reads, with their bytes."""
        reads, pending, seen = {}, list(operations), set(operations)
        while pending:
            operation = pending.pop()
            for place, tensor in enumerate(operation.inputs):
                source = self._source(tensor)
                maker = source.deref().op
                if source in self._in_memory and (maker not in operations or self._is_alone(maker)):
                    in_part = place == 0 and operation.type in _READ_IN_PART
                    read = layer_memory.size(operation.outputs if in_part else [source.deref()])
                    reads[source] = max(read, reads.get(source, 0))
                elif maker in self._first and maker not in seen:
                    seen.add(maker)
                    pending.append(maker)
        return reads

    def _kernel(self, operations):
        """Return a list: the kernel that `operations` form, then the kernels of functions they call, as in a loop."""
        first = self._first[next(iter(operations))]
        written = {tensor.ref(): tensor for operation in operations for tensor in operation.outputs
                   if tensor.ref() in self._in_memory}
        num_bytes = sum(self._reads(operations).values()) + layer_memory.size(written.values())
        own = Kernel(num_bytes, product(first))
        inner = [_Fused(layer_analysis.LayerTrace(graph, [], graph.outputs, [], graph.outputs, None)).kernels().forward
                 for graph in layer_analysis.called_graphs(first, self._graph)]
        return [own, *(kernel for kernels in inner for kernel in kernels)]


def _root(first, operation):
    while first[operation] != operation:
        first[operation] = first[first[operation]]  # so that paths stay short
        operation = first[operation]
    return operation


def product(operation: tf.Operation) -> Product | None:
    """Return the sizes if `operation` is a matrix product or convolution, else None. Unknown dimensions count as 1."""
    multiply_adds = layer_analysis.multiply_adds(operation)
    if not multiply_adds:
        return None
    *others, columns = (dimension or 1 for dimension in operation.outputs[0].shape)
    count = math.prod(others[:-1]) if operation.type.startswith('BatchMatMul') else 1
    rows = math.prod(others) // count
    if operation.type == 'Einsum':
        rows, columns, count = _sizes_of_einsum(operation, multiply_adds)
    return Product(rows, columns, multiply_adds / (rows * columns * count), count, operation.outputs[0].dtype.name,
                   all(map(_is_aligned, [*operation.inputs, *operation.outputs])))


def _sizes_of_einsum(operation, multiply_adds):
    """Return the rows and columns of each matrix product in an einsum, and the number of products."""
    terms, result = operation.get_attr('equation').decode().split('->')
    left, right = (dict(zip(term, tensor.shape)) for term, tensor in zip(terms.split(','), operation.inputs))
    if '.' in terms:
        return math.prod(dimension or 1 for dimension in operation.outputs[0].shape[:-1]), (
            operation.outputs[0].shape[-1] or 1), 1
    sizes = {label: size or 1 for label, size in {**left, **right}.items()}
    rows, columns, depth = (math.prod(sizes[label] for label in labels) for labels in (
        left.keys() - right.keys(), right.keys() - left.keys(), (left.keys() & right.keys()) - set(result)))
    return rows, columns, multiply_adds // (rows * columns * depth)


def _is_aligned(tensor):
    """Return whether matrix rows begin at multiples of 16 bytes."""
    width = (tensor.shape[-1] or 1) if tensor.shape.rank else 1
    return not tensor.dtype.is_floating or width * tensor.dtype.size % _ALIGNMENT == 0  # integers are not matrices
