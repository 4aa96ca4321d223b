"""Where the pixels of an epoch come from: memory if they fit, else files, in an order drawn from a seed alone.

Both sources have the same two methods, so that one pipeline serves both:

```
references(order_seed) -> one element an example, cheap to skip
batch(examples)        -> (images uint8 [batch, height, width, channels], labels [batch], seeds [batch, length]),
                          `examples` being pairs of (reference, seed of the augmentation)
```
"""

import tensorflow as tf


class MemoryExamples:
    """Decoded images, all in memory; a reference is the number of an example.

    Args:
        encoded_examples: `tf.data.Dataset` of (encoded image, label).
        num_examples: its length.
        decode: (encoded image, seed) -> uint8 [height, width, channels] of static shape; it gets None for a seed.
    """

    def __init__(self, encoded_examples, num_examples, decode):
        decoded = encoded_examples.map(
            lambda encoded, label: (decode(encoded, None), label), num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=True)
        with tf.device('CPU:0'):
            self._images, self._labels = decoded.batch(num_examples, drop_remainder=True).get_single_element()

    def references(self, order_seed=None):
        """Returns all examples: in stored order without a seed, else in a random permutation of all of them.

        Args:
            order_seed: int64 [2], may be a tensor.
        """
        numbers = tf.range(len(self._labels), dtype=tf.int64)
        if order_seed is not None:
            numbers = tf.random.experimental.stateless_shuffle(numbers, order_seed)
        return tf.data.Dataset.from_tensor_slices(numbers)

    def batch(self, examples, batch_size, drop_remainder):
        """Looks up the pixels of a whole batch at once."""
        return examples.batch(batch_size, drop_remainder).map(
            lambda numbers, seeds: (tf.gather(self._images, numbers), tf.gather(self._labels, numbers), seeds))


class StreamedExamples:
    """Encoded images read anew in every epoch; a reference is (encoded image, label).

    Args:
        read: function from the seed of the order of the files (int64 scalar, or None for stored order) to a
            `tf.data.Dataset` of (encoded image, label).
        decode: (encoded image, seed) -> uint8 [height, width, channels] of static shape.
        shuffle_buffer_size: how many encoded images wait for being drawn.
    """

    def __init__(self, read, decode, shuffle_buffer_size):
        self._read = read
        self._decode = decode
        self._shuffle_buffer_size = shuffle_buffer_size

    def references(self, order_seed=None):
        """Returns all examples: in stored order without a seed, else files and then a buffer of examples shuffled.

        Args:
            order_seed: int64 [2], may be a tensor.
        """
        if order_seed is None:
            return self._read(None)
        seed = tf.random.stateless_uniform([], order_seed, minval=None, maxval=None, dtype=tf.int64)
        return self._read(seed).shuffle(self._shuffle_buffer_size, seed=seed, reshuffle_each_iteration=False)

    def batch(self, examples, batch_size, drop_remainder):
        """Decodes one by one, in parallel, then batches."""
        return examples.map(
            lambda reference, seed: (self._decode(reference[0], seed), reference[1], seed),
            num_parallel_calls=tf.data.AUTOTUNE, deterministic=True).batch(batch_size, drop_remainder)
