"""The rows of each batch that a process reads, if several processes read for one training run."""

import dataclasses

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Share:
    """One of several equal parts of every batch, in the order of its rows.

    ::

        examples in their order    0 1 2 3 4 5 6 7 8 9 ...
        batches of 4               [0 1 2 3] [4 5 6 7] ...
        share 0 of 2                0 1       4 5      ...
        share 1 of 2                    2 3       6 7  ...
    """

    index: int = 0
    count: int = 1

    def size(self, batch_size: int) -> int:
        """Return the number of rows of this share in a batch.

        Raises:
            ValueError: the shares do not divide the batch.
        """
        if batch_size % self.count:
            raise ValueError(f'input.batch_size: a batch has {batch_size} rows for {self.count} workers, and each must '
                             f'get as many. Set it to a multiple of {self.count}.')
        return batch_size // self.count

    def of(self, examples: tf.data.Dataset, batch_size: int) -> tf.data.Dataset:
        """Return the examples of this share, in their order; call this before expensive work on examples.

        Args:
            examples: endless `tf.data.Dataset` of single examples; the first example begins a batch.
        """
        size = self.size(batch_size)
        if self.count == 1:
            return examples
        return examples.batch(size, drop_remainder=True).shard(self.count, self.index).unbatch()


WHOLE = Share()
