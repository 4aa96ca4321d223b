"""Where the pixels of an epoch come from: memory, encoded or decoded, else files, in an order drawn from a seed alone.

All sources have the same two methods, so that one pipeline serves them:

```
references(order_seed) -> one element an example, cheap to skip
batch(examples)        -> (images uint8 [batch, height, width, channels], labels [batch], seeds [batch, length],
                           problems [batch]), `examples` being pairs of (reference, seed of the augmentation)
```

A problem is an empty string, or tells which record cannot be used and why; see `bad_records`.
"""

import tensorflow as tf

from lingpipe.input import data_options


class MemoryExamples:
    """Pixels, all in memory; a reference is the number of an example.

    Args:
        columns: tuple of images uint8 [n, height, width, channels], labels [n] and problems [n]; see `in_memory`.
    """

    def __init__(self, columns):
        self._columns = columns

    def references(self, order_seed=None):
        """Returns all examples: in stored order without a seed, else in a random permutation of all of them.

        Args:
            order_seed: int64 [2], may be a tensor.
        """
        return _numbers(len(self._columns[1]), order_seed)

    def batch(self, examples, batch_size, drop_remainder):
        """Looks up the pixels of a whole batch at once."""

        def look_up(numbers, seeds):
            images, labels, problems = (tf.gather(column, numbers) for column in self._columns)
            return images, labels, seeds, problems

        return examples.batch(batch_size, drop_remainder).map(look_up)


class MemoryRecords:
    """Images all in memory, as strings that are worked on at every visit; a reference is the number of an example.

    Args:
        columns: tuple of images string [n], labels [n] and identifiers or problems [n]; see `in_memory`.
        decode: (image, identifier or problem, seed) -> (uint8 [height, width, channels] of static shape, problem).
        num_parallel_calls: how many images are worked on at a time; None: tuned by tf.data.
    """

    def __init__(self, columns, decode, num_parallel_calls=None):
        self._columns = columns
        self._decode = decode
        self._num_parallel_calls = num_parallel_calls

    def references(self, order_seed=None):
        """Returns all examples as `MemoryExamples` does."""
        return _numbers(len(self._columns[1]), order_seed)

    def batch(self, examples, batch_size, drop_remainder):
        """Works on images one by one, in parallel, then batches."""

        def decoded(number, seed):
            return _decoded_example(self._decode, [column[number] for column in self._columns], seed)

        return data_options.parallel_map(examples, decoded, self._num_parallel_calls).batch(batch_size, drop_remainder)


class StreamedExamples:
    """Encoded images read anew in every epoch; a reference is (encoded image, label, identifier).

    Args:
        read: function from the seed of the order of the files (int64 scalar, or None for stored order) to a
            `tf.data.Dataset` of (encoded image, label, identifier).
        decode: (encoded image, identifier, seed) -> (uint8 [height, width, channels] of static shape, problem).
        shuffle_buffer_size: how many encoded images wait for being drawn.
        num_parallel_calls: how many images are worked on at a time; None: tuned by tf.data.
    """

    def __init__(self, read, decode, shuffle_buffer_size, num_parallel_calls=None):
        self._read = read
        self._decode = decode
        self._shuffle_buffer_size = shuffle_buffer_size
        self._num_parallel_calls = num_parallel_calls

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

        def decoded(reference, seed):
            return _decoded_example(self._decode, reference, seed)

        return data_options.parallel_map(examples, decoded, self._num_parallel_calls).batch(batch_size, drop_remainder)


def _decoded_example(decode, record, seed):
    image, label, identifier = record
    pixels, problem = decode(image, identifier, seed)
    return pixels, label, seed, problem


def in_memory(dataset, num_examples):
    """Returns the columns of a dataset of tuples of tensors, each `[num_examples, ...]`, on the CPU."""
    with tf.device('CPU:0'):
        return dataset.batch(num_examples, drop_remainder=True).get_single_element()


def _numbers(num_examples, order_seed):
    numbers = tf.range(num_examples, dtype=tf.int64)
    if order_seed is not None:
        numbers = tf.random.experimental.stateless_shuffle(numbers, order_seed)
    return tf.data.Dataset.from_tensor_slices(numbers)
