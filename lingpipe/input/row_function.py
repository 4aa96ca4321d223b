"""A function of one example for several of them in one operation, in which those that fail do not end the training."""

import tensorflow as tf


def map_rows(function, rows, fallback=None):
    """Calls a function on each row of tensors, one after another.

    A dataset is the only place where TensorFlow goes on after an error. One serves many rows, for it takes as long to set up as
    decoding 64 x 64 pixels does:

    ```
                 rows -> function -> drop errors --\\
                                                     batch -> put each where its row is, the fallback elsewhere
    fallback, numbered -1 ------------------------/
    ```

    Args:
        function: from the parts of a row to a nest of tensors of static shapes.
        rows: tuple of tensors `[n, ...]`, n > 0.
        fallback: nest of tensors like what the function returns, for rows where it fails; None: such a row is an error.

    Returns:
        Nest of tensors `[n, ...]`.
    """
    num_rows = tf.shape(rows[0])[0]
    numbered = tf.data.Dataset.from_tensor_slices((tf.range(num_rows), *rows))
    results = numbered.map(lambda number, *row: (number, function(*row)))
    if fallback is None:
        return results.batch(tf.cast(num_rows, tf.int64)).get_single_element()[1]
    results = tf.data.Dataset.from_tensors((-1, fallback)).concatenate(results.ignore_errors())
    numbers, values = results.batch(tf.cast(num_rows + 1, tf.int64)).get_single_element()
    return tf.cond(
        tf.size(numbers) == num_rows + 1, lambda: tf.nest.map_structure(lambda value: value[1:], values),
        lambda: _placed(values, numbers, num_rows))


def _placed(values, numbers, num_rows):
    """Puts each value but the first, the fallback, where its number says, and the fallback elsewhere."""
    sources = tf.tensor_scatter_nd_update(
        tf.zeros([num_rows], tf.int32), numbers[1:, tf.newaxis], tf.range(1, tf.size(numbers)))
    return tf.nest.map_structure(lambda value: tf.gather(value, sources), values)
