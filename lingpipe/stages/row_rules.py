"""Rules that say how the results of operations depend on the rows of a batch.

A function is traced for two batch sizes. The rows of a result are in the dimension whose size differs between the
traces.
"""

import enum
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

NUM_ROWS = (5, 7)  # of the two traces that are compared; primes, so that no other size grows by the same factor


class Form(enum.Enum):
    """The kinds of dependence on the rows of a batch. `Dependence` defines them."""

    CONSTANT = 'constant'
    ROWS = 'rows'
    SUM = 'sum'
    MIXED = 'mixed'


class Dependence(NamedTuple):
    """How a tensor depends on the n rows of a batch.

    ::

        form        value                                                      example, for an input x
        CONSTANT    c * n ** power                                             1.0, a weight; shape(x)[0]: power 1
        ROWS        row i is a function of row i of the inputs, * n ** power   square(x); x / shape(x)[0]: power -1
        SUM         the sum of a function of each row, * n ** power            reduce_sum(x); reduce_mean(x): power -1
        MIXED       anything else                                              x - reduce_mean(x); max(x)
    """

    form: Form
    power: int = 0  # exponent of the number of rows
    # for ROWS, the dimension that counts the rows. Each row may have several places there, one after the other, as in
    # the result of `reshape(x, [-1, 3])`.
    axis: int = 0


CONSTANT, MIXED = Dependence(Form.CONSTANT), Dependence(Form.MIXED)
MEAN = Dependence(Form.SUM, -1)  # a constant is its own mean
TOTAL = Dependence(Form.SUM)
ROWS = Dependence(Form.ROWS)


class Node(NamedTuple):
    """One operation in both traces, and the `Dependence` of each input."""

    operation: tf.Operation  # for `NUM_ROWS[0]` rows
    other: tf.Operation  # for `NUM_ROWS[1]` rows
    given: list[Dependence]

    def sizes(self, place: int) -> list[int]:
        """Return the shape of input `place` for `NUM_ROWS[0]` rows."""
        return self.operation.inputs[place].shape.as_list()

    def value(self, place: int) -> Any:
        """Return the value of input `place`, or None if it is not a known constant."""
        return tf.get_static_value(self.operation.inputs[place]) if self.given[place] == CONSTANT else None

    @property
    def rows(self) -> list[int]:
        """The indices of the inputs whose form is ROWS."""
        return [place for place, each in enumerate(self.given) if each.form is Form.ROWS]


def of_numbers(first: Any, second: Any) -> Dependence:
    """Return the `Dependence` of a number that is `first` for `NUM_ROWS[0]` rows and `second` for `NUM_ROWS[1]`."""
    if first == second:
        return CONSTANT
    return Dependence(Form.CONSTANT, 1) if first * NUM_ROWS[1] == second * NUM_ROWS[0] else MIXED


def grown(one: tf.Tensor, two: tf.Tensor) -> list[int] | None:
    """Return the dimensions whose sizes differ between two tensors, or None if the ranks differ or are unknown."""
    if one.shape.rank is None or one.shape.rank != two.shape.rank:
        return None
    return [axis for axis, (first, second) in enumerate(zip(one.shape, two.shape)) if first != second]


def placed(value: Dependence, one: tf.Tensor, two: tf.Tensor) -> Dependence:
    """Return `value`, for ROWS with the axis of the rows. Return MIXED if the shapes of the tensors contradict it."""
    axes = grown(one, two)
    if value == MIXED or one.dtype == tf.variant:  # a list of tensors has no shape
        return value
    if value.form is not Form.ROWS:
        return value if axes == [] else MIXED
    # Two dimensions differ if a result has, for example, the differences of all pairs of rows.
    if not axes or len(axes) > 1 or not (one.shape.is_fully_defined() and two.shape.is_fully_defined()):
        return MIXED
    first, second = one.shape[axes[0]], two.shape[axes[0]]
    return value._replace(axis=axes[0]) if first * NUM_ROWS[1] == second * NUM_ROWS[0] else MIXED


def _row_by_row(node: Node) -> Dependence:
    is_plain = all(each == CONSTANT or each.form is Form.ROWS and not each.power for each in node.given)
    return ROWS if is_plain else MIXED


def _linear(node: Node) -> Dependence:
    is_rounded = node.operation.type == 'Cast' and not node.operation.outputs[0].dtype.is_floating
    return MIXED if is_rounded and node.given[0].form is Form.SUM else node.given[0]


def _product(node: Node, sign: int = 1) -> Dependence:
    one, two = node.given[0], node.given[1]
    forms, power = [one.form, two.form], one.power + sign * two.power
    if Form.MIXED in forms or sign < 0 and two.form is Form.SUM:
        return MIXED
    if forms.count(Form.CONSTANT) == 2:
        return Dependence(Form.CONSTANT, power)
    if Form.SUM in forms:
        return Dependence(Form.SUM, power) if Form.CONSTANT in forms else MIXED
    return Dependence(Form.ROWS, power)


def _added(node: Node) -> Dependence:
    given = [each for place, each in enumerate(node.given) if not _is_zero(node, place)] or node.given
    forms = {each.form for each in given}
    if Form.MIXED in forms or forms >= {Form.SUM, Form.ROWS}:
        return MIXED
    has_sums = Form.SUM in forms  # beside them a constant is a sum of n equal parts
    powers = {each.power - (has_sums and each.form is Form.CONSTANT) for each in given}  # how they grow with the rows
    others = Form.ROWS if Form.ROWS in forms else Form.CONSTANT
    return Dependence(Form.SUM if has_sums else others, powers.pop()) if len(powers) == 1 else MIXED


def _is_zero(node: Node, place: int) -> bool:
    value = node.value(place)
    return value is not None and not np.any(value)


def _reduced(node: Node, lost: Callable[[int], Dependence] = lambda power: MIXED) -> Dependence:
    value, axes, is_linear = node.given[0], _axes_of(node), node.operation.type in ('Sum', 'Mean')
    if value.form is Form.SUM and is_linear:
        return value
    if value.form is not Form.ROWS or axes is None or value.power and not is_linear:
        return MIXED
    return lost(value.power) if value.axis in axes else value  # `lost`: the rows themselves are reduced


def _axes_of(node: Node, place: int = 1) -> set[int] | None:
    """Return the axes that input `place` lists, or None if unknown."""
    value = node.value(place)
    return None if value is None else {int(axis) % len(node.sizes(0)) for axis in np.reshape(value, -1)}


def _along_others(node: Node, place: int = 1) -> Dependence:
    """Return MIXED if an operation such as `cumsum` works along the rows, or might."""
    axes = _axes_of(node, place)  # along which it works
    return _row_by_row(node) if node.rows == [0] and axes is not None and node.given[0].axis not in axes else MIXED


def _along_last(node: Node, count: int = 1) -> Dependence:
    """Return the dependence of an operation along the last `count` dimensions, such as softmax."""
    kept = len(node.sizes(0)) - count
    return _row_by_row(node) if all(node.given[place].axis < kept for place in node.rows) else MIXED


def _first_is_batch(node: Node) -> Dependence:
    """Return MIXED unless only the first input, such as a convolution's image, has rows, and in dimension 0."""
    return _row_by_row(node) if node.rows == [0] and node.given[0].axis == 0 else MIXED


def _matrix_product(node: Node) -> Dependence:
    names = ('transpose_a', 'transpose_b') if node.operation.type == 'MatMul' else ('adj_x', 'adj_y')
    flipped = [node.operation.get_attr(name) for name in names]
    contracted = [len(node.sizes(0)) - 1 - flipped[0], len(node.sizes(1)) - 2 + flipped[1]]
    return _contracted(node, [node.given[place].axis == contracted[place] for place in node.rows])


def _einsum(node: Node) -> Dependence:
    terms, result = node.operation.get_attr('equation').decode().split('->')
    letters = [terms.split(',')[place][node.given[place].axis] for place in node.rows if '...' not in terms]
    return _contracted(node, [letter not in result for letter in letters]) if len(set(letters)) == 1 else MIXED


def _contracted(node: Node, is_summed: list[bool]) -> Dependence:
    """Return the `Dependence` of a product that sums over the rows of the inputs where `is_summed` is True."""
    if not any(is_summed):  # one entry for each input with rows
        return _row_by_row(node)
    return TOTAL if all(is_summed) and _row_by_row(node) == ROWS else MIXED


def _half_square_sum(node: Node) -> Dependence:
    return TOTAL if node.rows == [0] and not node.given[0].power else MIXED


def _moved(node: Node, data: slice = slice(1)) -> Dependence:
    """Return the dependence of an operation that only moves values of the inputs `data`."""
    value = node.given[data][0]
    is_kept = value.form is not Form.ROWS or _is_whole(node, data.start or 0)
    return value if is_kept and set(node.given[data]) == {value} else MIXED


def _is_whole(node: Node, place: int = 0) -> bool:
    """Return whether result 0 has as many rows as input `place`."""
    result, size = node.operation.outputs[0], node.sizes(place)[node.given[place].axis]
    return any(result.shape[axis] == size for axis in grown(result, node.other.outputs[0]) or [])


def _reshaped(node: Node) -> Dependence:
    value, result = node.given[0], node.operation.outputs[0]
    same = grown(result, node.other.outputs[0]) == [value.axis] and (
        node.sizes(0)[:value.axis] == result.shape[:value.axis].as_list())  # then rows stay together
    return value if value.form is not Form.ROWS or same else MIXED


def _sliced(node: Node) -> Dependence:
    start, strides = node.value(1), node.value(3) if node.operation.type == 'StridedSlice' else 1
    if start is None or strides is None or np.min(strides) < 0:
        return MIXED
    shapes = [tf.get_static_value(each.inputs[0]) for each in (node.operation, node.other)]
    if node.given[0].form is not Form.MIXED or any(shape is None for shape in shapes):
        return _moved(node)
    is_number = node.operation.outputs[0].shape.rank == 0  # sliced from a shape, it may be the number of rows
    return of_numbers(*[shape[np.reshape(start, -1)[0]] for shape in shapes]) if is_number else MIXED


def _padded(node: Node) -> Dependence:
    return _moved(node) if node.given[0] == ROWS._replace(axis=node.given[0].axis) else MIXED


def _gathered(node: Node) -> Dependence:
    is_by_row = node.operation.type == 'GatherV2' and node.operation.get_attr('batch_dims') > 0
    if node.rows == [0]:
        return _row_by_row(node) if _is_whole(node) else MIXED
    if node.rows == [1]:
        return _row_by_row(node)
    # With batch dimensions, both data and indices may have rows.
    return ROWS if is_by_row and node.given == [ROWS, ROWS, CONSTANT] and node.value(2) > 0 else MIXED


def _filled(node: Node, place: int = 0) -> Dependence:
    """Return the `Dependence` of a tensor that repeats input `place`, as in `tf.tile`."""
    # A constant that is repeated for each row counts as ROWS.
    return ROWS if node.given[place] == CONSTANT else _moved(node, slice(place, place + 1))


_ELEMENT_WISE = (
    'Abs Acos Acosh Asin Asinh Atan Atan2 Atanh BiasAdd Bitcast BitwiseAnd BitwiseOr BitwiseXor Ceil ClipByValue Cos '
    'Cosh Elu EluGrad Equal Erf Erfc Erfinv Exp Expm1 Floor FloorDiv FloorMod Gelu Greater GreaterEqual Inv InvGrad '
    'IsFinite IsInf IsNan LeakyRelu Less LessEqual Lgamma Log Log1p LogicalAnd LogicalNot LogicalOr Maximum Minimum '
    'Mod NotEqual OnesLike Pow Reciprocal Relu Relu6 Rint Round Rsqrt Select SelectV2 Selu Sigmoid Sign Sin Sinh '
    'Softplus Softsign Sqrt Square SquaredDifference StringLength StringLower StringToHashBucketFast StringUpper Tan '
    'Tanh TruncateDiv TruncateMod Xdivy Xlog1py Xlogy ZerosLike').split()
_ALL, _ALL_BUT_LAST, _SECOND = slice(None), slice(-1), slice(1, 2)

RULES: dict[str, Callable[[Node], Any]] = {
    **dict.fromkeys((*_ELEMENT_WISE, 'OneHot'), _row_by_row),
    **dict.fromkeys(('Identity', 'StopGradient', 'PreventGradient', 'CheckNumerics', 'Neg', 'Cast'), _linear),
    **dict.fromkeys(('Mul', 'MulNoNan'), _product),
    **dict.fromkeys(('RealDiv', 'Div', 'DivNoNan'), functools.partial(_product, sign=-1)),
    **dict.fromkeys(('Add', 'AddV2', 'AddN', 'Sub'), _added),
    'Sum': functools.partial(_reduced, lost=lambda power: Dependence(Form.SUM, power)),
    'Mean': functools.partial(_reduced, lost=lambda power: Dependence(Form.SUM, power - 1)),
    **dict.fromkeys(('Max', 'Min', 'Prod', 'Any', 'All', 'EuclideanNorm', 'ArgMax', 'ArgMin'), _reduced),
    **dict.fromkeys(('Softmax', 'LogSoftmax', 'SoftmaxCrossEntropyWithLogits', 'SparseSoftmaxCrossEntropyWithLogits',
                     'TopKV2', 'InTopKV2'), _along_last),
    'MatrixBandPart': functools.partial(_along_last, count=2),
    **dict.fromkeys((
        'Conv2D', 'Conv3D', 'DepthwiseConv2dNative', 'MaxPool', 'MaxPoolV2', 'AvgPool', 'MaxPool3D', 'AvgPool3D',
        'ResizeBilinear', 'ResizeNearestNeighbor', 'ResizeBicubic', 'SpaceToDepth', 'DepthToSpace',
        'ExtractImagePatches'), _first_is_batch),
    **dict.fromkeys(('MatMul', 'BatchMatMulV2', 'BatchMatMulV3', 'BatchMatMul'), _matrix_product),
    'Einsum': _einsum, 'L2Loss': _half_square_sum,
    'Reshape': _reshaped, 'Slice': _sliced, 'StridedSlice': _sliced,
    **dict.fromkeys(('ExpandDims', 'Squeeze', 'Transpose', 'SplitV', 'Unpack'), _moved),
    'Split': functools.partial(_moved, data=_SECOND), 'Pack': functools.partial(_moved, data=_ALL),
    'ConcatV2': functools.partial(_moved, data=_ALL_BUT_LAST), 'IdentityN': lambda node: list(node.given),
    **dict.fromkeys(('Pad', 'PadV2', 'MirrorPad'), _padded),
    **dict.fromkeys(('Cumsum', 'Cumprod', 'ReverseV2'), _along_others),
    'Roll': functools.partial(_along_others, place=2),
    **dict.fromkeys(('GatherV2', 'ResourceGather', 'GatherNd'), _gathered),
    'Fill': functools.partial(_filled, place=1), 'BroadcastTo': _filled, 'Tile': _filled}
