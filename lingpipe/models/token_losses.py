"""Cross-entropies of tokens, and their means over those that count."""

import tensorflow as tf


def smoothed(nats, logits, label_smoothing):
    """Mixes in the cross-entropy of the uniform distribution (arXiv 1512.00567, section 7).

    Args:
        nats: plain cross-entropies `[batch, length]`.
        logits: `[batch, length, vocab_size]`.
        label_smoothing: probability spread evenly over all tokens.

    Returns:
        Cross-entropies `[batch, length]`.
    """
    if not label_smoothing:
        return nats
    uniform = tf.reduce_logsumexp(logits, -1) - tf.reduce_mean(logits, -1)
    return (1 - label_smoothing) * nats + label_smoothing * uniform


def weighted_mean(values, weights, total):
    """Returns the sum of values times weights over `total`; 0 where that is 0."""
    return tf.math.divide_no_nan(tf.reduce_sum(values * weights), total)
