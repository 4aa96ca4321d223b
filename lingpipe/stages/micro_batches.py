"""Micro-batches of a batch, and sums over micro-batches.

Micro-batch m of M is the slice `[n * m // M : n * (m + 1) // M]` of a batch of n rows. If n is known only at run time,
some micro-batches may be empty. Many operations, such as convolutions, fail without rows. Therefore an empty
micro-batch gets one row of the batch, but its row count is 0::

    n = 2, M = 4   rows  [0:1]  [0:1]  [1:2]  [1:2]     numbers of rows  0  1  0  1
"""

import functools
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import keras
import tensorflow as tf

from lingpipe.devices import device_kinds

RowCounts = Sequence[Any]  # integers, or scalar tensors where the number of rows is known only at run time


def specs_of_tensors(batch: Any) -> Any:
    """Return the specs of a nest of tensors, arrays and Nones."""
    return tf.nest.map_structure(
        lambda tensor: None if tensor is None else tf.TensorSpec(tensor.shape, tensor.dtype), batch)


def specs_of_shapes(shapes: Any) -> Any:
    """Return a `tf.TensorSpec` of dtype `floatx` for each shape in a nest. A shape is a tuple such as (None, 28)."""
    if all(size is None or isinstance(size, int) for size in shapes):
        return tf.TensorSpec(shapes, keras.backend.floatx())
    return type(shapes)(specs_of_shapes(shape) for shape in shapes)


class MicroBatchId(NamedTuple):
    """The id of a micro-batch. All random numbers depend on this id. Each field is an int64 tensor."""

    seed_and_step: tf.Tensor  # [2]
    step: tf.Tensor
    number: tf.Tensor  # in the batch
    num_rows: tf.Tensor
    replica: tf.Tensor
    number_in_replica: tf.Tensor

    @classmethod
    def of(cls, numbers: tf.Tensor) -> Self:
        """Return a `MicroBatchId` from the tensor `[6]` that `MicroBatchIds.of` returns."""
        return cls(numbers[:2], *[numbers[index] for index in range(1, 6)])


class MicroBatchIds:
    """The ids of a replica's micro-batches. Each id is a tensor `[6]`. See `MicroBatchId`.

    Args:
        device: this device or its host computes the ids.
        first: how many micro-batches the replicas before this one have in total.
    """

    def __init__(self, seed_and_step: tf.Tensor, rows: RowCounts, device: str, first: int = 0,
                 replica: int = 0) -> None:
        self._rows, self._device = rows, device_kinds.for_single_operations(device)
        with tf.device(self._device):
            seed_and_step = tf.cast(seed_and_step, tf.int64)
            # A value known only at run time. For constants, TensorFlow would compile a stage once per micro-batch.
            self._start = tf.concat([seed_and_step, tf.constant([first, 0, replica, 0], tf.int64)], 0)
        self._tensors: dict[int, tf.Tensor] = {}

    @property
    def zero(self) -> tf.Tensor:
        """A float32 scalar 0, which TensorFlow does not treat as a constant."""
        with tf.device(self._device):
            return tf.cast(self._start[3], tf.float32)

    def of(self, micro_batch: int) -> tf.Tensor:
        """Return the id of a micro-batch of the replica, as an int64 tensor `[6]`."""
        if micro_batch not in self._tensors:
            numbers = [0, 0, micro_batch, self._rows[micro_batch], 0, micro_batch]
            with tf.device(self._device):
                is_known = isinstance(numbers[3], int)
                more = tf.constant(numbers, tf.int64) if is_known else tf.stack([tf.cast(n, tf.int64) for n in numbers])
                self._tensors[micro_batch] = self._start + more
        return self._tensors[micro_batch]


def count(batch: Any, num_micro_batches: int) -> int:
    """Return how many micro-batches to cut a batch into.

    Return `num_micro_batches`. If the batch is known to have fewer rows, return the number of rows, but at least 1.

    Raises:
        ValueError: the tensors differ in their number of rows, or a tensor has no batch dimension.
    """
    found = [_static_rows(tensor) for tensor in tf.nest.flatten(batch) if tensor is not None]
    sizes = {rows for rows in found if rows is not None}
    if len(sizes) > 1:
        raise ValueError(
            f'The tensors of a batch have {sorted(sizes)} rows: all must have the same number. Check the input '
            'pipeline.')
    return max(1, min(num_micro_batches, *sizes)) if sizes else num_micro_batches


def row_checks(batch: Any) -> list[tf.Operation]:
    """Return run-time checks that tensors have equal numbers of rows. Return [] if all numbers are known."""
    tensors = [leaf for leaf in tf.nest.flatten(batch) if leaf is not None]
    if all(_static_rows(tensor) is not None for tensor in tensors):
        return []
    rows = [tf.shape(tensor)[0] for tensor in tensors]
    return [tf.debugging.assert_equal(
        rows[1:], rows[0], 'The tensors of a batch have other numbers of rows than the first: all must have the same '
        'number. Check the input pipeline.')] if rows[1:] else []


def split(batch: Any, num_micro_batches: int) -> list:
    """Split a nest of tensors and their Keras masks into micro-batches."""
    parts = [_split_leaf(leaf, num_micro_batches) for leaf in tf.nest.flatten(batch)]
    return [tf.nest.pack_sequence_as(batch, row) for row in zip(*parts)]


def split_on(device: str, batch: Any, num_micro_batches: int) -> list:
    """Call `split` for a nest of tensors, arrays and Nones, on `device` or, if it is a TPU, on its host."""
    def to_tensor(leaf: Any) -> Any:
        return leaf if leaf is None or tf.is_tensor(leaf) else tf.convert_to_tensor(leaf)

    with tf.device(device_kinds.for_single_operations(device)):
        return split(tf.nest.map_structure(to_tensor, batch), num_micro_batches)


def join(micro_batches: list, rows: RowCounts) -> Any:
    """Join the micro-batches of `split`. The argument `rows` comes from `numbers_of_rows`."""
    return tf.nest.map_structure(functools.partial(_join_leaves, rows), *micro_batches)


def are_equal(rows: RowCounts) -> bool:
    """Return whether all micro-batches are known to have the same number of rows."""
    return all(isinstance(count, int) and count == rows[0] for count in rows)


def numbers_of_rows(batch: Any, num_micro_batches: int) -> RowCounts:
    """Return the number of rows of each micro-batch."""
    tensor = next(leaf for leaf in tf.nest.flatten(batch) if leaf is not None)
    return [end - start for start, end in itertools.pairwise(_ends(tensor, num_micro_batches))]


def specs_of(nest: Any, num_rows: int | None) -> Any:
    """Convert a nest of tensors or specs to specs with `num_rows` rows. None means an unknown number."""
    return tf.nest.map_structure(lambda tensor: tf.TensorSpec([num_rows, *tensor.shape[1:]], tensor.dtype), nest)


def most_rows(num_rows: int, num_parts: int) -> int:
    """Return how many rows the largest part has if `num_rows` rows are split into `num_parts` parts."""
    return -(-num_rows // num_parts)


def _static_rows(tensor: tf.Tensor) -> int | None:
    shape = tf.TensorShape(tensor.shape)
    if shape.rank == 0:
        raise ValueError(
            'A pipeline input is a scalar: every input needs a batch dimension. Repeat it for each example.')
    return shape[0]


def _split_leaf(leaf: Any, num_micro_batches: int) -> list:
    if leaf is None:
        return [None] * num_micro_batches
    parts, mask = _split_tensor(leaf, num_micro_batches), getattr(leaf, '_keras_mask', None)
    if mask is not None:
        for part, part_mask in zip(parts, _split_tensor(mask, num_micro_batches)):
            part._keras_mask = part_mask
    return parts


def _join_leaves(rows: Any, *leaves: Any) -> Any:
    if leaves[0] is None:
        return None
    joined, masks = _join_tensors(rows, leaves), [getattr(leaf, '_keras_mask', None) for leaf in leaves]
    if masks[0] is not None:
        joined._keras_mask = _join_tensors(rows, masks)
    return joined


def _join_tensors(rows: RowCounts, tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Concatenate tensors, without the extra row that `split` gives to an empty micro-batch."""
    return tf.concat([tensor if isinstance(count, int) else tensor[:count] for count, tensor in zip(rows, tensors)], 0)


def _split_tensor(tensor: tf.Tensor, num_micro_batches: int) -> list[tf.Tensor]:
    rows = tensor.shape[0]
    if rows is not None and rows % num_micro_batches == 0:
        return tf.split(tensor, num_micro_batches)
    ends = itertools.pairwise(_ends(tensor, num_micro_batches))
    if rows is not None:
        return [tensor[start:end] for start, end in ends]
    return [tensor[start:tf.maximum(end, start + 1)] for start, end in ends]


def _ends(tensor: tf.Tensor, num_micro_batches: int) -> RowCounts:
    """Return M + 1 row indices `ends`, where micro-batch m is `tensor[ends[m]:ends[m + 1]]`."""
    rows = tensor.shape[0] if tensor.shape[0] is not None else tf.shape(tensor)[0]
    return [rows * m // num_micro_batches for m in range(num_micro_batches + 1)]


class Rows(NamedTuple):
    """A sparse gradient, like `tf.IndexedSlices`, of a weight such as an embedding."""

    values: tf.Tensor  # `[lookups, ...]`
    indices: tf.Tensor  # `[lookups]`, the row of each lookup; a row that was looked up twice occurs twice


class Sums(NamedTuple):
    """Metrics, losses and gradients of a batch. All but input gradients are summed over the micro-batches."""

    metrics: dict  # from name to (sum, weight), on the last stage
    losses: list  # for each stage whose layers add losses, the pair (sum, rows)
    weights: list  # for each stage, the list of the Keras variables that a loss depends on
    weight_gradients: list  # for each stage, the list of the sums of their gradients, or of all micro-batches' `Rows`
    input_gradients: list  # for each micro-batch, the gradients of its differentiable inputs; empty unless requested


def join_rows(parts: Sequence[Rows]) -> Rows:
    """Join several `Rows` into one."""
    return Rows(*[tf.concat(each, 0) if len(each) > 1 else each[0] for each in zip(*parts)])


def total(parts: list, shape: Any) -> Any:
    """Sum the gradients of one weight. The sum is `tf.IndexedSlices` if all gradients are `Rows`."""
    if all(isinstance(part, Rows) for part in parts):
        return tf.IndexedSlices(*join_rows(parts), tf.constant(tuple(shape), tf.int64))
    dense = [tf.math.unsorted_segment_sum(*part, shape[0]) if isinstance(part, Rows) else part for part in parts]
    return tf.add_n(dense) if len(dense) > 1 else dense[0]


def add_up(parts: list) -> Any:
    """Add nests of tensors in a fixed order."""
    # tf.add_n would choose an order to save memory.
    return tf.nest.map_structure(lambda *values: tf.reduce_sum(tf.stack(values), 0), *parts) if parts else {}
