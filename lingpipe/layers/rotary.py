"""Rotary positions: queries and keys are turned by angles that grow with their position (RoFormer, arXiv 2104.09864)."""

import keras
import numpy as np


def rotate(vectors, start=0, largest_wavelength=10_000.0):
    """Turns pairs of channels (i, i + h/2) at position t by the angle t / largest_wavelength^(2i / h).

    The product of a query and a key turned so depends on the difference of their positions only (section 3.2.2).

    Args:
        vectors: `[batch, length, num_heads, h]`, h even.
        start: position of the first vector; may be a tensor.
        largest_wavelength: as above.

    Returns:
        Tensor of the same shape and dtype.
    """
    length, num_pairs = vectors.shape[1], vectors.shape[3] // 2
    frequencies = largest_wavelength ** (-np.arange(num_pairs, dtype=np.float32) / num_pairs)
    angles = keras.ops.cast(start + keras.ops.arange(length), 'float32')[:, None, None] * frequencies
    sine, cosine = (keras.ops.cast(wave, vectors.dtype) for wave in (keras.ops.sin(angles), keras.ops.cos(angles)))
    first, second = vectors[..., :num_pairs], vectors[..., num_pairs:]
    return keras.ops.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)
