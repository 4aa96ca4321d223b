"""Counting floating-point operations from the shapes in a traced graph, without running it."""

import math
from typing import NamedTuple

_FREE = frozenset([
    'Const', 'Placeholder', 'Identity', 'IdentityN', 'NoOp', 'Reshape', 'ExpandDims', 'Squeeze', 'Shape', 'Pack',
    'Unpack', 'StridedSlice', 'Slice', 'ConcatV2', 'Split', 'SplitV', 'Transpose', 'Cast', 'StopGradient',
    'BroadcastTo', 'Tile', 'Pad', 'PadV2', 'GatherV2', 'ReadVariableOp', 'Fill', 'ZerosLike', 'OnesLike'])


class Flops(NamedTuple):
    """Floating-point operations of a graph: `contractions` (two a multiply-add) and `elementwise` (one an output value)."""

    contractions: int
    elementwise: int

    @property
    def total(self):
        return self.contractions + self.elementwise


def count_flops(graph):
    """Counts what one execution of a traced function computes.

    Args:
        graph: `tf.Graph` with static shapes, such as the `graph` of a concrete function. The bodies of loops count once.

    Returns:
        `Flops`.
    """
    contractions = elementwise = 0
    for operation in graph.get_operations():
        if operation.type in _CONTRACTIONS:
            contractions += 2 * _CONTRACTIONS[operation.type](operation)
        elif operation.type not in _FREE and operation.inputs and operation.outputs and _is_float(operation.outputs[0]):
            elementwise += _size(operation.outputs[0])
        for body in _called_graphs(operation, graph):
            inner = count_flops(body)
            contractions, elementwise = contractions + inner.contractions, elementwise + inner.elementwise
    return Flops(contractions, elementwise)


def _is_float(tensor):
    return tensor.dtype.is_floating


def _size(tensor):
    return math.prod(dimension or 1 for dimension in tensor.shape.as_list()) if tensor.shape.rank is not None else 0


def _matrix_product(operation):
    transposed = operation.get_attr('transpose_a' if operation.type == 'MatMul' else 'adj_x')
    return _size(operation.outputs[0]) * (operation.inputs[0].shape[-2 if transposed else -1] or 1)


def _convolution(operation):
    kernel = operation.inputs[1].shape.as_list()
    return _size(operation.outputs[0]) * math.prod(kernel[:-1])


def _depthwise_convolution(operation):
    return _size(operation.outputs[0]) * math.prod(operation.inputs[1].shape.as_list()[:2])


def _einsum(operation):
    """Product of the sizes of all labels; the dimensions that '...' stands for are numbered from the right."""
    terms = operation.get_attr('equation').decode().split('->')[0].split(',')
    sizes = {}
    for term, tensor in zip(terms, operation.inputs):
        head, _, tail = term.partition('...')
        labels = [*head, *range(tensor.shape.rank - len(head) - len(tail), 0, -1), *tail]
        for label, size in zip(labels, tensor.shape.as_list()):
            sizes[label] = max(size or 1, sizes.get(label, 1))
    return math.prod(sizes.values()) if len(terms) > 1 else 0


_CONTRACTIONS = {
    'MatMul': _matrix_product,
    'BatchMatMul': _matrix_product,
    'BatchMatMulV2': _matrix_product,
    'BatchMatMulV3': _matrix_product,
    'Conv2D': _convolution,
    'Conv3D': _convolution,
    'DepthwiseConv2dNative': _depthwise_convolution,
    'Einsum': _einsum,
}


def _called_graphs(operation, graph):
    names = [value.func.name for value in operation.node_def.attr.values() if value.HasField('func')]
    functions = (graph._get_function(name) for name in names)  # pylint: disable=protected-access
    return [function.graph for function in functions if getattr(function, 'graph', None) is not None]
