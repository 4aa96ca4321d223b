"""How a loss that a layer adds grows with the number of rows: as a sum over them, or not, as a mean."""

import math
import re

import tensorflow as tf

from lingpipe.pipeline import graph_pieces

_UNKNOWN = math.nan
_SHAPERS = ('Reshape', 'BroadcastTo', 'Tile', 'Transpose', 'ExpandDims', 'Squeeze', 'Slice', 'Pad')
_LINEAR = ('Identity', 'StopGradient', 'PreventGradient', 'CheckNumerics', 'Cast', 'Neg', 'Abs', 'Real', 'Relu', *_SHAPERS)
_ALIKE = ('Add', 'AddV2', 'AddN', 'Sub', 'Maximum', 'Minimum', 'SelectV2', 'Select', 'Pack', 'ConcatV2')
_POWERS = {'Square': 2.0, 'Sqrt': 0.5, 'Rsqrt': -0.5, 'Reciprocal': -1.0, 'Inv': -1.0}
_PRODUCTS = ('Mul', 'MulNoNan')
_QUOTIENTS = ('RealDiv', 'Div', 'DivNoNan', 'Xdivy', 'FloorDiv')


def are_sums(graph, losses, inputs):
    """Says which losses are sums over the rows of their batch, so that those of micro-batches have to be added up.

    The power of the number of rows that a tensor grows with is followed through the graph::

        inputs          0       reduce_sum over the rows    +1      a * b   sum of both
        weights         none    reduce_mean over the rows   +0      a / b   difference
        shape(x)[0]     1       square                      * 2     a + b   that of both, where they agree

    A loss of power 1 is a sum, as `reduce_sum(x)` and `reduce_mean(x) * shape(x)[0]` are. Everything else is computed for
    each micro-batch, and the mean over these counts.

    Args:
        graph: graph that was traced with an unknown number of rows.
        losses: list of scalars in it.
        inputs: list of the tensors in it that depend on the rows.

    Returns:
        List of booleans, one a loss.
    """
    powers = {tensor.ref(): 0.0 for tensor in inputs}
    needed = graph_pieces.ancestors(losses)
    for operation in graph.get_operations():
        if operation in needed:
            _follow(operation, powers)
    return [powers.get(loss.ref()) == 1.0 for loss in losses]


def _follow(operation, powers):
    """Notes the powers of what an operation computes; what does not depend on the rows has none."""
    for position, output in enumerate(operation.outputs):
        if output.ref() not in powers:
            power = _power_of(operation, position, [powers.get(tensor.ref()) for tensor in operation.inputs])
            if power is not None:
                powers[output.ref()] = power


def _power_of(operation, position, given):
    kind, known = operation.type, [power for power in given if power is not None]
    if kind in ('Shape', 'Size'):
        return _power_of_size(operation)
    if not known:
        return None
    if tf.get_static_value(operation.outputs[position]) is not None:
        return None
    rule = _drawn if re.match('(Stateless)?(Random|Truncated|Parameterized)', kind) else _RULES.get(kind)
    if rule is not None:
        return rule(operation, given)
    if kind == 'IdentityN':
        return given[position]
    return 0.0 if not any(known) and not _hides_rows(operation) else _UNKNOWN


def _power_of_size(operation):
    unknown = _num_unknown(operation.inputs[0])
    if operation.type == 'Shape':
        return 1.0 if unknown else None
    return unknown or None


def _hides_rows(operation):
    """Whether the rows are lost in an operation that no rule is known for."""
    has_rows = [_num_unknown(tensor) for tensor in (*operation.inputs, *operation.outputs)]
    return any(has_rows[:len(operation.inputs)]) and not any(has_rows[len(operation.inputs):])


def _num_unknown(tensor):
    return _UNKNOWN if tensor.shape.rank is None else float(sum(size is None for size in tensor.shape))


def _first(operation, given):
    """A constant that is repeated for each row has rows, though it does not grow with them."""
    return given[0] or 0.0


def _element(operation, given):
    """What is cut out of a shape may be the size of a dimension that has nothing to do with rows."""
    source, places = operation.inputs[0], tf.get_static_value(operation.inputs[1])
    if source.op.type != 'Shape' or places is None or operation.outputs[0].shape.rank:
        return given[0]
    return 1.0 if source.op.inputs[0].shape[int(places.reshape(-1)[0])] is None else None


def _drawn(operation, given):
    """Random numbers depend on the rows by how many there are."""
    return 0.0


def _filled(operation, given):
    return given[1] or 0.0


def _alike(operation, given):
    """A small constant that is added to a divisor does not count."""
    known = {power for power in given if power is not None}
    return known.pop() if len(known) == 1 else _UNKNOWN


def _product(operation, given):
    return sum(power for power in given if power is not None)


def _quotient(operation, given):
    return (given[0] or 0.0) - (given[1] or 0.0)


def _power(operation, given):
    return _POWERS[operation.type] * given[0]


def _sum(operation, given):
    return given[0] + _num_reduced(operation)


def _half_square_sum(operation, given):
    return 2.0 * given[0] + _num_unknown(operation.inputs[0])


def _num_reduced(operation):
    tensor, axes = operation.inputs[0], tf.get_static_value(operation.inputs[1])
    if tensor.shape.rank is None or axes is None:
        return _UNKNOWN
    return float(sum(tensor.shape[int(axis)] is None for axis in axes.reshape(-1)))


def _matrix_product(operation, given):
    tensor, is_transposed = operation.inputs[0], operation.get_attr(
        'transpose_a' if operation.type == 'MatMul' else 'adj_x')
    if tensor.shape.rank is None:
        return _UNKNOWN
    return _product(operation, given) + (tensor.shape[-2 if is_transposed else -1] is None)


def _einsum(operation, given):
    """Adds the letters that stand for rows and that the result lacks."""
    terms, result = operation.get_attr('equation').decode().split('->')
    summed = {letter for term, tensor in zip(terms.split(','), operation.inputs) if '...' not in term
              for letter, size in zip(term, tensor.shape) if size is None and letter not in result}
    return _product(operation, given) + len(summed)


_RULES = {
    **dict.fromkeys(_LINEAR, _first), **dict.fromkeys(_ALIKE, _alike), **dict.fromkeys(_PRODUCTS, _product),
    **dict.fromkeys(_QUOTIENTS, _quotient), **dict.fromkeys(_POWERS, _power), **dict.fromkeys(('Mean', 'Max', 'Min'), _first),
    **dict.fromkeys(('MatMul', 'BatchMatMul', 'BatchMatMulV2'), _matrix_product),
    **dict.fromkeys(('StridedSlice', 'GatherV2'), _element),
    'Fill': _filled, 'Sum': _sum, 'L2Loss': _half_square_sum, 'Prod': _first, 'Einsum': _einsum}
