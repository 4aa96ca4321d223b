"""How the losses that layers add grow with the number of rows, which distinguishes sums over rows from means."""

import math
import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from lingpipe.stages import graph_pieces

_UNKNOWN = math.nan
# Types of operations by the rule for the power of their results; see `are_sums`.
_SHAPERS = ('Reshape', 'BroadcastTo', 'Tile', 'Transpose', 'ExpandDims', 'Squeeze', 'Slice', 'Pad')
_LINEAR = ('Identity', 'StopGradient', 'PreventGradient', 'CheckNumerics', 'Cast', 'Neg', 'Abs', 'Real', 'Relu',
           *_SHAPERS)
_ALIKE = ('Add', 'AddV2', 'AddN', 'Sub', 'Maximum', 'Minimum', 'SelectV2', 'Select', 'Pack', 'ConcatV2')
_POWERS = {'Square': 2.0, 'Sqrt': 0.5, 'Rsqrt': -0.5, 'Reciprocal': -1.0, 'Inv': -1.0}
_PRODUCTS = ('Mul', 'MulNoNan')
_QUOTIENTS = ('RealDiv', 'Div', 'DivNoNan', 'Xdivy', 'FloorDiv')


class Twin:
    """Another trace of the same stage, with twice as many rows.

    Args:
        graph: its graph.
    """

    def __init__(self, graph: tf.Graph) -> None:
        self._operations = {operation.name: operation for operation in graph.get_operations()}

    def has(self, operation: tf.Operation) -> bool:
        """Returns whether the twin also has the operation and its inputs."""
        operations = [operation, *[tensor.op for tensor in operation.inputs]]
        found: list[Any] = [self._operations.get(each.name) for each in operations]
        return all(found) and found[0].type == operation.type and len(found[0].outputs) == len(operation.outputs)

    def growth(self, tensor: tf.Tensor, axes: Iterable[int] | None = None) -> float:
        """Returns the power of the number of rows with which the size of a tensor, or of some dimensions, grows.

        Args:
            tensor: tensor of the first trace.
            axes: the dimensions to count; None: all.
        """
        sizes = [_size(each, axes) for each in (tensor, self._of(tensor))]
        return _log_ratio(*sizes) if all(sizes) else _UNKNOWN

    def constants(self, tensor: tf.Tensor) -> list[np.ndarray] | None:
        """Returns the two arrays that a tensor holds in both traces; None if it is not constant in one of them."""
        values = [tf.get_static_value(each) for each in (tensor, self._of(tensor))]
        return None if any(value is None for value in values) else values

    def _of(self, tensor):
        return self._operations[tensor.op.name].outputs[tensor.value_index]


def _size(tensor, axes):
    if not tensor.shape.is_fully_defined():
        return None
    return math.prod(tensor.shape if axes is None else [tensor.shape[int(axis)] for axis in axes])


def _growth_of_constants(one, other):
    """Returns the power with which a constant grows, or the product of a shape's sizes; None if it does not grow."""
    if np.array_equal(one, other):
        return None
    if one.shape == other.shape and one.dtype.kind == 'i':
        return _log_ratio(np.prod(one), np.prod(other))
    return _log_ratio(*[np.mean(np.abs(value, dtype='float64')) for value in (one, other)])


def _log_ratio(one, other):
    if one == other:
        return 0.0
    return math.log2(other / one) if one > 0 and other > 0 else _UNKNOWN


def are_sums(graph: tf.Graph, other: tf.Graph, losses: list[tf.Tensor], inputs: list[tf.Tensor]) -> list[bool | None]:
    """Finds which losses are sums over the rows of their batch, so that those of micro-batches have to be summed.

    A tensor grows with a power of the number of rows, which is followed through the graph::

        inputs          0       reduce_sum over the rows    +1      a * b   sum of both
        weights         none    reduce_mean over the rows   +0      a / b   difference
        shape(x)[0]     1       square                      * 2     a + b   that of both, if they agree

    A loss of power 1 is a sum, such as `reduce_sum(x)` and `reduce_mean(x) * shape(x)[0]`. For all other losses the
    mean over the micro-batches counts. Sizes depend on the rows if the two traces differ in them.

    Args:
        graph: graph that was traced with a known number of rows.
        other: the same, traced with twice as many rows.
        losses: list of scalars in the first graph.
        inputs: list of the tensors in the first graph that depend on the rows.

    Returns:
        List with one entry per loss: True for a sum, False for anything else, None if it is unknown.
    """
    twin = Twin(other)
    powers = {tensor.ref(): 0.0 for tensor in inputs}
    needed = graph_pieces.ancestors(losses)
    for operation in graph.get_operations():
        if operation in needed:
            _follow(operation, powers, twin)
    return [_verdict(powers.get(loss.ref(), 0.0)) for loss in losses]


def _verdict(power):
    return None if math.isnan(power) else math.isclose(power, 1.0, abs_tol=1e-6)


def _follow(operation, powers, twin):
    """Records the powers of an operation's results; a result that does not depend on the rows has no power."""
    given = [powers.get(tensor.ref()) for tensor in operation.inputs]
    for position, output in enumerate(operation.outputs):
        if output.ref() not in powers:
            power = _power_of(operation, position, given, twin)
            if power is not None:
                powers[output.ref()] = power


def _power_of(operation, position, given, twin):
    kind, known = operation.type, [power for power in given if power is not None]
    if not twin.has(operation):
        return _UNKNOWN if known else None
    constants = twin.constants(operation.outputs[position])
    if constants is not None:
        return _growth_of_constants(*constants)
    if not known:
        return None
    rule = _drawn if re.match('(Stateless)?(Random|Truncated|Parameterized)', kind) else _RULES.get(kind)
    if rule is not None:
        return rule(operation, given, twin)
    if kind == 'IdentityN':
        return given[position]
    if operation.outputs[position].dtype in (tf.bool, tf.variant):  # decisions and lists have no size of their own
        return 0.0
    grow = [power for tensor, power in zip(operation.inputs, given) if power and not tensor.dtype.is_integer]
    return _UNKNOWN if grow or _hides_rows(operation, position, twin) else 0.0


def _hides_rows(operation, position, twin):
    """Whether an operation without a rule loses the rows in an output, such as a function's scalar."""
    return any(map(twin.growth, operation.inputs)) and not twin.growth(operation.outputs[position])


def _first(operation, given, twin):
    """Power of the first input; a constant that is repeated for each row does not grow with the rows."""
    return given[0] or 0.0


def _element(operation, given, twin):
    """Power of an element of a shape, which may be the size of a dimension that does not depend on the rows."""
    source, places = operation.inputs[0], tf.get_static_value(operation.inputs[1])
    constants = twin.constants(source)
    if constants is None or places is None or operation.outputs[0].shape.rank:
        return given[0]
    return _growth_of_constants(*[value[int(places.reshape(-1)[0])] for value in constants])


def _drawn(operation, given, twin):
    """Power of random numbers: there are more of them with more rows, but each is as large as before."""
    return 0.0


def _filled(operation, given, twin):
    return given[1] or 0.0


def _alike(operation, given, twin):
    """Power that all inputs share; a small constant that is added to a divisor does not count."""
    known = {power for power in given if power is not None}
    return known.pop() if len(known) == 1 else _UNKNOWN


def _product(operation, given, twin):
    return sum(power for power in given if power is not None)


def _quotient(operation, given, twin):
    return (given[0] or 0.0) - (given[1] or 0.0)


def _power(operation, given, twin):
    return _POWERS[operation.type] * given[0]


def _sum(operation, given, twin):
    tensor, axes = operation.inputs[0], tf.get_static_value(operation.inputs[1])
    return (given[0] or 0.0) + (_UNKNOWN if axes is None else twin.growth(tensor, axes.reshape(-1)))


def _half_square_sum(operation, given, twin):
    return 2.0 * given[0] + twin.growth(operation.inputs[0])


def _matrix_product(operation, given, twin):
    is_transposed = operation.get_attr('transpose_a' if operation.type == 'MatMul' else 'adj_x')
    return _product(operation, given, twin) + twin.growth(operation.inputs[0], [-2 if is_transposed else -1])


def _einsum(operation, given, twin):
    """Adds the growth of the letters that the product sums over, which are missing in the result."""
    terms, result = operation.get_attr('equation').decode().split('->')
    plain = [(term, tensor) for term, tensor in zip(terms.split(','), operation.inputs) if '...' not in term]
    summed = {letter: twin.growth(tensor, [axis]) for term, tensor in plain
              for axis, letter in enumerate(term) if letter not in result}
    return _product(operation, given, twin) + sum(summed.values())


_RULES = {
    **dict.fromkeys(_LINEAR, _first), **dict.fromkeys(_ALIKE, _alike), **dict.fromkeys(_PRODUCTS, _product),
    **dict.fromkeys(_QUOTIENTS, _quotient), **dict.fromkeys(_POWERS, _power),
    **dict.fromkeys(('Mean', 'Max', 'Min'), _first),
    **dict.fromkeys(('MatMul', 'BatchMatMul', 'BatchMatMulV2', 'BatchMatMulV3'), _matrix_product),
    **dict.fromkeys(('StridedSlice', 'GatherV2'), _element),
    'Fill': _filled, 'Sum': _sum, 'L2Loss': _half_square_sum, 'Prod': _first, 'Einsum': _einsum}
