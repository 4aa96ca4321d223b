"""Number of bytes that a tensor takes on a device."""

import itertools
import math
from collections.abc import Callable

import tensorflow as tf

TensorSize = Callable[[tf.TensorShape, tf.DType], int]

_LANES, _SUBLANES, _WORD = 128, (1, 2, 4, 8), 4
_LARGEST_TILE_OF_A_VECTOR = 1024


def plain_size(shape: tf.TensorShape, dtype: tf.DType) -> int:
    """Return the number of bytes of a tensor, without padding."""
    return math.prod(shape) * dtype.size


def tiled_size(shape: tf.TensorShape, dtype: tf.DType) -> int:
    """Return the number of bytes of a tensor on a TPU, which pads it to whole tiles."""
    # Two axes are padded: one to a multiple of 128, the other to 1, 2, 4 or a multiple of 8. The TPU compiler takes the
    # pair of axes that needs the fewest bytes (libtpu 0.0.51, layouts of the entry computation):
    #     [16, 32, 32, 8]    the last axis to 128:                      16 x 32 x 32 x 128
    #                        the third axis to 128, the last one to 8:  16 x 32 x 8 x 128      <- taken
    sizes, packed = [max(size, 1) for size in shape] or [1], max(1, _WORD // dtype.size)
    if len(sizes) == 1:
        return _up_to(sizes[0], _tile_of_vector(sizes[0], packed)) * dtype.size
    padded = min(math.prod(sizes) // (lanes * rows) * _up_to(lanes, _LANES) * _up_to(rows, _tile_of_rows(rows, packed))
                 for lanes, rows in itertools.permutations(sizes, 2))
    return padded * dtype.size


def _tile_of_rows(num_rows, packed):
    """Return how many rows a tile has if the tensor has `num_rows` rows."""
    # In a column, `packed` elements share a word of four bytes.
    return next((tile for tile in _SUBLANES if max(num_rows, packed) <= tile), _SUBLANES[-1])


def _tile_of_vector(length, packed):
    tile = _LANES * packed
    while tile < min(length, _LARGEST_TILE_OF_A_VECTOR):
        tile *= 2
    return tile


def _up_to(size, multiple):
    return -(-size // multiple) * multiple
