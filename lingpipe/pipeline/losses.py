"""What a loss function may return, brought to one form: means with their weights, which add up over micro-batches."""

import tensorflow as tf


def as_metrics(loss_fn):
    """Wraps a loss function for the last stage.

    Args:
        loss_fn: function `(targets, outputs)`, or a Keras loss, that returns a scalar (the mean over the examples), a tensor
            `[batch, ...]` (a loss for each), or, as Lingvo's tasks do, a dictionary from name to (mean, weight) with the
            entry 'loss'.

    Returns:
        Function `(targets, outputs) -> {name: (mean, weight)}`.
    """

    def metrics(targets, outputs):
        result = loss_fn(targets, outputs)
        if not isinstance(result, dict):
            result = tf.convert_to_tensor(result)
            rows = tf.shape(tf.nest.flatten(outputs)[0])[0] if result.shape.rank == 0 else tf.size(result)
            return {'loss': (tf.reduce_mean(result), tf.cast(rows, tf.float32))}
        if 'loss' not in result:
            raise ValueError(f"The loss function returned {sorted(result)}: it must return an entry 'loss'. Add it.")
        return result

    return metrics


def means(sums):
    """Divides metric sums by their weights.

    Args:
        sums: dictionary from name to (sum, weight).

    Returns:
        Dictionary from name to the mean; 0 where nothing was counted.
    """
    return {name: tf.math.divide_no_nan(total, weight) for name, (total, weight) in sums.items()}
