"""A decoder-only Transformer in NumPy, written from the formulas, to compare the layers with."""

import math

import numpy as np


def layer_norm(x, scale, offset, epsilon=1e-6):
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + epsilon) * scale + offset


def gelu(x):
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def rotate(x, start=0):
    """Rotary positions as products of complex numbers; x is `[length, h]`."""
    half = x.shape[1] // 2
    angles = (start + np.arange(len(x)))[:, None] * 10_000.0 ** (-np.arange(half) / half)
    turned = (x[:, :half] + 1j * x[:, half:]) * np.exp(1j * angles)
    return np.concatenate([turned.real, turned.imag], 1)


def attention(x, weights, num_heads, is_causal=True, is_rotary=False, allowed=None):
    """Attention of one sequence, head by head and query by query; `weights` are those of `MultiHeadAttention`."""
    kernel, bias, output_kernel, output_bias = weights
    queries, keys, values = np.split(x @ kernel + bias, 3, axis=1)
    width, outputs = x.shape[1] // num_heads, []
    for head in range(num_heads):
        q, k, v = (part[:, head * width:(head + 1) * width] for part in (queries, keys, values))
        if is_rotary:
            q, k = rotate(q), rotate(k)
        rows = []
        for t in range(len(x)):
            seen = [s for s in range(len(x)) if (s <= t or not is_causal) and (allowed is None or allowed[s])]
            exponentials = np.exp(k[seen] @ q[t] / math.sqrt(width))
            rows.append(exponentials / exponentials.sum() @ v[seen])
        outputs.append(np.stack(rows))
    return np.concatenate(outputs, 1) @ output_kernel + output_bias


def block(x, weights, num_heads, **options):
    """A pre-LN block; `weights` in the order of `TransformerBlock`."""
    x = x + attention(layer_norm(x, *weights['attention_norm']), weights['attention'], num_heads, **options)
    kernel, bias, output_kernel, output_bias = weights['feed_forward']
    return x + gelu(layer_norm(x, *weights['feed_forward_norm']) @ kernel + bias) @ output_kernel + output_bias
