"""Choosing the next token from its logits."""

from typing import NamedTuple

import tensorflow as tf


class Sampling(NamedTuple):
    """How the next token is chosen.

    Attributes:
        temperature: what logits are divided by: below 1 the likely gets likelier; 0 takes the likeliest token always.
        top_k: only so many of the likeliest tokens have a chance (arXiv 1805.04833, section 5.1); 0: all have.
        seed: integer that all draws depend on.
    """

    temperature: float = 0.8
    top_k: int = 40
    seed: int = 0

    def validate(self):
        """Returns itself.

        Raises:
            ValueError: a field cannot work.
        """
        if not 0 <= self.temperature < float('inf'):
            raise ValueError(f'temperature={self.temperature} is not possible: it must be 0 or a positive number. Set it to '
                             '0.8, for instance, or to 0 for the likeliest tokens.')
        for field, value in (('top_k', self.top_k), ('seed', self.seed)):
            if value < 0:
                raise ValueError(f'{field}={value} is not possible: it must be an integer of 0 or more. Set it to 0 at least.')
        return self

    def choose(self, logits, draw):
        """Chooses tokens.

        Args:
            logits: `[batch, vocab_size]`.
            draw: int32 scalar tensor, the number of the draw, which with the seed determines it.

        Returns:
            int32 `[batch]`.
        """
        if not self.temperature:
            return tf.argmax(logits, -1, tf.int32)
        logits = tf.cast(logits, tf.float32) / self.temperature
        if 0 < self.top_k < logits.shape[-1]:
            smallest = tf.math.top_k(logits, self.top_k).values[:, -1:]
            logits = tf.where(logits < smallest, logits.dtype.min, logits)
        seed = tf.stack([tf.constant(self.seed, tf.int32), draw])
        return tf.random.stateless_categorical(logits, 1, seed, tf.int32)[:, 0]
