"""Rules for operations that move values: how their results depend on the rows of a batch."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from lingpipe.stages.rows import arithmetic
from lingpipe.stages.rows.forms import (
    CONSTANT,
    MEAN,
    MIXED,
    ROWS,
    TOTAL,
    Dependence,
    Form,
    Node,
    aligned,
    axes_of,
    of_numbers,
    only_rows,
)


def _reshaped(node: Node) -> Dependence:
    """Return the dependence of a reshaped value: elements stay in order, so rows in dimension 0 stay together."""
    value = node.given[0]
    if value.form is not Form.ROWS:
        return value
    if value.axis == 0:
        return value
    same = node.sizes(0)[:value.axis + 1] == node.operation.outputs[0].shape.as_list()[:value.axis + 1]
    return value if same else MIXED


def _expanded(node: Node) -> Dependence:
    value, axis = node.given[0], node.value(1)
    if value.form is not Form.ROWS or axis is None:
        return value
    axis = int(np.reshape(axis, -1)[0]) % (len(node.sizes(0)) + 1)
    return value._replace(axis=value.axis + (axis <= value.axis))


def _squeezed(node: Node) -> Dependence:
    value, rank = node.given[0], len(node.sizes(0))
    if value.form is not Form.ROWS:
        return value
    axes = {axis % rank for axis in node.get('squeeze_dims')} or {
        axis for axis, size in enumerate(node.sizes(0)) if size == 1}
    return value._replace(axis=value.axis - sum(axis < value.axis for axis in axes))


def _transposed(node: Node) -> Dependence:
    value, order = node.given[0], node.value(1)
    if value.form is not Form.ROWS or order is None:
        return value if value.form is Form.SUM else MIXED
    return value._replace(axis=[int(axis) for axis in order].index(value.axis))


def _sliced(node: Node) -> Dependence:
    """Return the dependence of a slice that takes all rows in order, or takes the number of rows from a shape."""
    value = node.given[0]
    if value.form is Form.MIXED:
        return _number_of_rows(node)
    if value.form is not Form.ROWS:
        return value if value.form is Form.SUM else MIXED
    axis = _axis_after_strides(node) if node.operation.type == 'StridedSlice' else value.axis
    if axis is None:
        return MIXED
    sizes = node.operation.outputs[0].shape.as_list()
    takes_all = axis < len(sizes) and sizes[axis] == node.sizes(0)[value.axis]
    return value._replace(axis=axis) if takes_all else MIXED


def _axis_after_strides(node: Node) -> int | None:
    """Return the dimension of the rows in the result of x[a:b:c, ...]; None if rows are reversed or one is taken."""
    strides, axis = node.value(3), node.given[0].axis
    if strides is None:
        return None
    num_others = len(strides) - 1 - node.get('new_axis_mask').bit_count()
    is_empty_ellipsis = node.get('ellipsis_mask') & 1 and num_others == len(node.sizes(0))
    inserts = node.get('ellipsis_mask') or node.get('new_axis_mask')
    if is_empty_ellipsis or axis and inserts or axis < len(strides) and strides[axis] != 1:
        return None
    shrunk = node.get('shrink_axis_mask')
    return None if shrunk >> axis & 1 else axis - (shrunk & (1 << axis) - 1).bit_count()


def _number_of_rows(node: Node) -> Dependence:
    """Return the dependence of an element of a shape."""
    pair = [tf.get_static_value(each.inputs[0]) for each in (node.operation, node.other)]
    start = node.value(1)
    if pair[0] is None or pair[1] is None or start is None or node.operation.outputs[0].shape.rank:
        return MIXED
    return of_numbers(*(value[int(np.reshape(start, -1)[0])] for value in pair))


def _padded(node: Node) -> Dependence:
    value, paddings = node.given[0], node.value(1)
    if value.form is not Form.ROWS or paddings is None or value.power:
        return MIXED
    return value if not np.asarray(paddings)[value.axis].any() else MIXED


def _along_other_axis(node: Node, place: int) -> Dependence:
    """Return the dependence of an operation along some dimensions, which its input number `place` lists."""
    value, axes = node.given[0], axes_of(node, place)
    return value if value.form is Form.ROWS and axes is not None and value.axis not in axes and not any(
        each.form is not Form.CONSTANT for each in node.given[1:]) else MIXED


def _split(node: Node) -> Dependence:
    is_sized = node.operation.type == 'SplitV'
    value, axis = node.given[0 if is_sized else 1], node.value(2 if is_sized else 0)
    if value.form is not Form.ROWS or axis is None:
        return MIXED
    rank = len(node.sizes(0 if is_sized else 1))
    return value if int(axis) % rank != value.axis else MIXED


def _unpacked(node: Node) -> Dependence:
    value = node.given[0]
    axis = node.get('axis') % len(node.sizes(0))
    if value.form is not Form.ROWS or axis == value.axis:
        return MIXED
    return value._replace(axis=value.axis - (axis < value.axis))


def _packed(node: Node) -> Dependence:
    rank = node.operation.outputs[0].shape.rank
    axis = node.get('axis') % rank
    if {each.form for each in node.given} <= {Form.SUM, Form.CONSTANT}:
        return arithmetic.added(node)
    value = node.given[0]
    if set(node.given) != {value} or value.form is not Form.ROWS:
        return MIXED
    return value._replace(axis=value.axis + (axis <= value.axis))


def _concatenated(node: Node) -> Dependence:
    axis, values = node.value(len(node.given) - 1), set(node.given[:-1])
    value = node.given[0]
    if values <= {MEAN, TOTAL} and len(values) == 1:
        return value
    if axis is None or len(values) != 1 or value.form is not Form.ROWS:
        return MIXED
    return value if int(axis) % len(node.sizes(0)) != value.axis else MIXED


def _gathered(node: Node) -> Dependence:
    """Return the dependence of a gather: a constant by rows' indices, rows by constant indices, or within each row."""
    params, indices = node.given[:2]
    axis = 0 if len(node.given) < 3 else node.value(2)
    batch_dims = node.get('batch_dims') if node.operation.type == 'GatherV2' else 0
    if axis is None or any(each.power for each in node.given):
        return MIXED
    axis = int(axis) % max(1, len(node.sizes(0)))
    if batch_dims == 0 and params.form is Form.CONSTANT and indices.form is Form.ROWS:
        return indices._replace(axis=indices.axis + axis)
    if batch_dims == 0 and params.form is Form.ROWS and indices.form is Form.CONSTANT and params.axis != axis:
        moved = len(node.sizes(1)) - 1 if axis < params.axis else 0
        return params._replace(axis=params.axis + moved)
    return params if params == indices == ROWS and batch_dims > 0 and axis > 0 else MIXED


def _gathered_in_each(node: Node) -> Dependence:
    return node.given[1] if only_rows(node, 1) and node.given[1].axis < len(node.sizes(1)) - 1 else MIXED


def _one_hot(node: Node) -> Dependence:
    rank = node.operation.outputs[0].shape.rank
    value = node.given[0]
    if not only_rows(node, 0):
        return MIXED
    axis = node.get('axis') % rank
    return value._replace(axis=value.axis + (axis <= value.axis))


def _filled(node: Node) -> Dependence:
    """Return the dependence of a constant that is repeated for each row, or of rows that are broadcast."""
    value = node.given[1 if node.operation.type == 'Fill' else 0]
    if value.form is Form.ROWS:
        return aligned(node._replace(given=[value])) if node.operation.type == 'BroadcastTo' else MIXED
    return ROWS if value == CONSTANT else MIXED


def _tiled(node: Node) -> Dependence:
    value, multiples = node.given[0], tf.get_static_value(node.operation.inputs[1])
    if value.form is not Form.ROWS or multiples is None or multiples[value.axis] != 1:
        return ROWS if value == CONSTANT else MIXED
    return value


def _one_by_one(node: Node) -> list[Dependence]:
    return list(node.given)


RULES: dict[str, Callable[[Node], Any]] = {
    'Reshape': _reshaped, 'ExpandDims': _expanded, 'Squeeze': _squeezed, 'Transpose': _transposed,
    'Slice': _sliced, 'StridedSlice': _sliced, 'Pad': _padded, 'PadV2': _padded, 'MirrorPad': _padded,
    'Cumsum': functools.partial(_along_other_axis, place=1), 'Cumprod': functools.partial(_along_other_axis, place=1),
    'ReverseV2': functools.partial(_along_other_axis, place=1), 'Roll': functools.partial(_along_other_axis, place=2),
    'Split': _split, 'SplitV': _split, 'Unpack': _unpacked, 'Pack': _packed, 'ConcatV2': _concatenated,
    'GatherV2': _gathered, 'ResourceGather': _gathered, 'GatherNd': _gathered_in_each, 'OneHot': _one_hot,
    'Fill': _filled, 'BroadcastTo': _filled, 'Tile': _tiled, 'IdentityN': _one_by_one}
