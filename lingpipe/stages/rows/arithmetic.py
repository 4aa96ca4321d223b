"""Rules for operations that compute: how their results depend on the rows of a batch."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from lingpipe.stages.rows.forms import CONSTANT, MIXED, Dependence, Form, Node, aligned, axes_of, only_rows


def _element_wise(node: Node) -> Dependence:
    forms = {each.form for each in node.given}
    if not forms <= {Form.CONSTANT, Form.ROWS} or any(each.power for each in node.given):
        return MIXED
    return aligned(node)


def _linear(node: Node) -> Dependence:
    """Return the dependence of the only input, which the result also has."""
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
    return aligned(node, power)


def added(node: Node) -> Dependence:
    """Return the dependence of a sum, whose terms have to grow alike, apart from zeros."""
    given = [each for place, each in enumerate(node.given) if not _is_zero(node, place)] or node.given
    forms = {each.form for each in given}
    if Form.MIXED in forms or forms >= {Form.SUM, Form.ROWS}:
        return MIXED
    has_sums = Form.SUM in forms  # beside them a constant is the sum of its n-th parts
    powers = {each.power - (has_sums and each.form is Form.CONSTANT) for each in given}
    if len(powers) > 1:
        return MIXED
    if forms == {Form.CONSTANT}:
        return node.given[0]
    return Dependence(Form.SUM, powers.pop()) if has_sums else aligned(node, powers.pop())


def _is_zero(node: Node, place: int) -> bool:
    value = node.value(place) if node.given[place].form is Form.CONSTANT else None
    return value is not None and not np.any(value)


def _reduced(node: Node, lost: Callable[[int], Dependence]) -> Dependence:
    """Return the dependence after a reduction; if the rows are reduced, `lost` maps their power to the dependence."""
    value, axes = node.given[0], axes_of(node)
    if value.form is Form.SUM:
        return value if node.operation.type in ('Sum', 'Mean') else MIXED
    if value.form is not Form.ROWS or axes is None:
        return MIXED
    if value.axis in axes:
        return lost(value.power)
    if value.power and node.operation.type not in ('Sum', 'Mean'):
        return MIXED
    is_kept = node.operation.type not in _ARG and node.get('keep_dims')
    before = 0 if is_kept else sum(axis < value.axis for axis in axes)
    return value._replace(axis=value.axis - before)


def _along_last(node: Node) -> Dependence:
    """Operations that work along the last dimensions of rows: softmax, sorting, transforms."""
    kept = len(node.sizes(0)) - _LAST.get(node.operation.type, 1)
    return _aligned_all(node) if all(each.axis < kept for each in node.given) else MIXED


def _aligned_all(node: Node) -> Dependence:
    is_known = all(each == node.given[0] or each == CONSTANT for each in node.given)
    return node.given[0] if is_known and only_rows(node, *node.rows) and node.given[0].form is Form.ROWS else MIXED


def _first_is_batch(node: Node) -> Dependence:
    """Operations over a batch, such as a convolution, whose other inputs are constants."""
    return node.given[0] if only_rows(node, 0) and node.given[0].axis == 0 else MIXED


def _matrix_product(node: Node) -> Dependence:
    """Rows times a constant matrix, or matrices of each row."""
    first, second = node.given
    rank, others = len(node.sizes(0)), len(node.sizes(1))
    if only_rows(node, 0):
        is_transposed = node.get('transpose_a' if node.operation.type == 'MatMul' else 'adj_x')
        is_right = first.axis == rank - 1 or first.axis == rank - 2 and is_transposed
        return MIXED if is_right or others > rank else first
    if only_rows(node, 1):
        return second if rank <= others and second.axis < others - 2 else MIXED
    if not only_rows(node, 0, 1) or rank != others:
        return MIXED
    if _is_summed_over_rows(node):
        return Dependence(Form.SUM)
    return first if first == second and first.axis < rank - 2 else MIXED


def _is_summed_over_rows(node: Node) -> bool:
    """Whether a matrix product sums over the rows: they are the axis that it contracts, in both inputs."""
    names = ('transpose_a', 'transpose_b') if node.operation.type == 'MatMul' else ('adj_x', 'adj_y')
    rank, flipped = len(node.sizes(0)), [node.get(name) for name in names]
    return [each.axis for each in node.given] == [rank - 1 - flipped[0], rank - 2 + flipped[1]]


def _einsum(node: Node) -> Dependence:
    terms, result = node.get('equation').decode().split('->')
    if '...' in terms + result or not {each.form for each in node.given} <= {Form.ROWS, Form.CONSTANT}:
        return MIXED
    letters = {term[each.axis] for term, each in zip(terms.split(','), node.given) if each.form is Form.ROWS}
    if len(letters) != 1 or any(each.power for each in node.given):
        return MIXED
    letter = letters.pop()
    if letter not in result:  # the sum of the products of each row
        return Dependence(Form.SUM)
    return Dependence(Form.ROWS, 0, result.find(letter))


def _half_square_sum(node: Node) -> Dependence:
    return Dependence(Form.SUM) if only_rows(node, 0) else MIXED


_ELEMENT_WISE = (
    'Abs Acos Acosh Asin Asinh Atan Atan2 Atanh BesselI0e BesselI1e BitwiseAnd BitwiseOr BitwiseXor Ceil '
    'ClipByValue Complex ComplexAbs Conj Cos Cosh Digamma Elu EluGrad Equal Erf Erfc Erfinv Exp Expm1 Floor FloorDiv '
    'FloorMod Gelu Greater GreaterEqual Igamma Igammac Imag Inv InvGrad Invert IsFinite IsInf IsNan LeakyRelu Less '
    'LessEqual Lgamma Log Log1p LogicalAnd LogicalNot LogicalOr Maximum Minimum Mod NextAfter NotEqual OnesLike Pow '
    'Real Reciprocal Relu Relu6 RightShift LeftShift Rint Round Rsqrt SelectV2 Selu Sigmoid Sign Sin Sinh '
    'Softplus Softsign Sqrt Square SquaredDifference Tan Tanh TruncateDiv TruncateMod Xdivy Xlogy Xlog1py ZerosLike '
    'BiasAdd Bitcast StringLower StringUpper StringLength StringToHashBucketFast').split()
_ARG = ('ArgMax', 'ArgMin')  # they never keep the dimension
_LAST = {'FFT2D': 2, 'IFFT2D': 2, 'RFFT2D': 2, 'FFT3D': 3, 'MatrixInverse': 2, 'Cholesky': 2, 'MatrixDeterminant': 2,
         'SelfAdjointEigV2': 2, 'Svd': 2, 'MatrixDiagPartV3': 2, 'MatrixBandPart': 2, 'Qr': 2}


RULES: dict[str, Callable[[Node], Any]] = {
    **dict.fromkeys(_ELEMENT_WISE, _element_wise),
    **dict.fromkeys(('Identity', 'StopGradient', 'PreventGradient', 'CheckNumerics', 'Neg', 'Cast'), _linear),
    **dict.fromkeys(('Mul', 'MulNoNan'), _product),
    **dict.fromkeys(('RealDiv', 'Div', 'DivNoNan'), functools.partial(_product, sign=-1)),
    **dict.fromkeys(('Add', 'AddV2', 'AddN', 'Sub'), added),
    'Sum': functools.partial(_reduced, lost=lambda power: Dependence(Form.SUM, power)),
    'Mean': functools.partial(_reduced, lost=lambda power: Dependence(Form.SUM, power - 1)),
    **dict.fromkeys(('Max', 'Min', 'Prod', 'Any', 'All', 'EuclideanNorm', *_ARG),
                    functools.partial(_reduced, lost=lambda power: MIXED)),
    **dict.fromkeys(('Softmax', 'LogSoftmax', 'SoftmaxCrossEntropyWithLogits', 'SparseSoftmaxCrossEntropyWithLogits',
                     'TopKV2', 'InTopKV2', 'FFT', 'IFFT', 'RFFT', *_LAST), _along_last),
    **dict.fromkeys((
        'Conv2D', 'Conv3D', 'DepthwiseConv2dNative', 'MaxPool', 'MaxPoolV2', 'AvgPool', 'MaxPool3D',
        'AvgPool3D', 'ResizeBilinear', 'ResizeNearestNeighbor', 'ResizeBicubic', 'ResizeArea', 'LRN', 'SpaceToDepth',
        'DepthToSpace', 'ExtractImagePatches', 'RGBToHSV', 'HSVToRGB'), _first_is_batch),
    **dict.fromkeys(('MatMul', 'BatchMatMulV2', 'BatchMatMulV3', 'BatchMatMul'), _matrix_product),
    'Einsum': _einsum, 'L2Loss': _half_square_sum}
