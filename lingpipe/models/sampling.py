"""Sampling of the next token of a text."""

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import tensorflow as tf


class Sampling(NamedTuple):
    """Settings for the choice of the next token."""

    # number that divides the logits: below 1, likely tokens get more likely; 0 always takes the most likely token
    temperature: float = 0.8
    top_k: int = 40  # number of the most likely tokens among which one is drawn (arXiv 1805.04833, section 5.1); 0: all
    seed: int = 0
    # a token is drawn among the most likely ones whose probabilities reach this sum (arXiv 1904.09751, section 3.1); 1:
    # all
    top_p: float = 1.0

    def validate(self) -> 'Sampling':
        """Check the fields and return this object.

        Raises:
            ValueError: a field is out of its range.
        """
        if self.temperature != 0 and not 1e-6 <= self.temperature < float('inf'):  # logits / 1e-40 overflow
            raise ValueError(f'temperature={self.temperature} is not possible: it must be 0, or 0.000001 or more. Set '
                             'it to 0.8, for instance, or to 0 for the likeliest tokens.')
        if not 0 < self.top_p <= 1:
            raise ValueError(f'top_p={self.top_p} is not possible: it must be above 0, and 1 at most. Set it to 0.9, '
                             'for instance, or to 1 for all tokens.')
        for field, value in (('top_k', self.top_k), ('seed', self.seed)):
            if value < 0:
                raise ValueError(f'{field}={value} is not possible: it must be an integer of 0 or more. Set it to 0 at '
                                 'least.')
        return self

    def choose(self, logits: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Return the next tokens, int32 `[batch]`, for logits `[batch, vocab_size]`. `seed` is int32 `[2]`."""
        if not self.temperature:
            return tf.argmax(logits, -1, tf.int32)
        logits = tf.cast(logits, tf.float32) / self.temperature
        if 0 < self.top_k < logits.shape[-1]:
            logits = _at_least(logits, tf.math.top_k(logits, self.top_k).values[:, -1:])
        if self.top_p < 1:
            logits = _at_least(logits, self._smallest_of_nucleus(logits))
        return tf.random.stateless_categorical(logits, 1, seed, tf.int32)[:, 0]

    def _smallest_of_nucleus(self, logits):
        falling = tf.sort(logits, direction='DESCENDING')
        before = tf.cumsum(tf.nn.softmax(falling), exclusive=True, axis=-1)
        return tf.reduce_min(tf.where(before < self.top_p, falling, falling.dtype.max), -1, keepdims=True)

    def keras_hub_sampler(self, vocab_size: int) -> Any:
        """Return a KerasHub sampler with these settings."""
        from keras_hub import samplers  # pylint: disable=import-outside-toplevel

        self.validate()
        if not self.temperature:
            return samplers.GreedySampler()
        top_k = self.top_k if self.top_k < vocab_size else 0
        # `TopKSampler` is not used: a rounding difference can reorder its candidates, and so change the draw.
        # `TopPSampler` sorts its candidates, so only nearly equal ones can change places.
        if self.top_p < 1 or top_k:
            return samplers.TopPSampler(self.top_p, top_k or None, self.seed, temperature=self.temperature)
        return samplers.RandomSampler(self.seed, temperature=self.temperature)


def _at_least(logits, smallest):
    return tf.where(logits < smallest, logits.dtype.min, logits)


class LoopSampler:
    """A sampler for prompts of different lengths, with the interface of KerasHub's samplers."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling.validate()
        self._seed_generator = keras.random.SeedGenerator(sampling.seed)
        self.variables = [self._seed_generator.state]  # they determine the next draw

    def __call__(self, next: Callable, prompt: tf.Tensor, cache: Any, index: tf.Tensor,  # pylint: disable=redefined-builtin
                 mask: tf.Tensor, stop_token_ids: tuple | None = None) -> tf.Tensor:
        """Return prompts with their continuations, as tokens `[batch, length]`.

        Args:
            next: function `(prompt, cache, index) -> logits [batch, vocab_size], hidden states, cache`.
            prompt: int32 `[batch, length]`.
            index: int32 scalar, the number of tokens of the shortest prompt.
            mask: boolean `[batch, length]`, True where prompts have tokens.
        """
        def has_more(prompt, cache, index, mask):
            del cache, index
            if not stop_token_ids:
                return tf.constant(True)
            is_stop = tf.reduce_any(prompt[..., tf.newaxis] == tf.constant(stop_token_ids, prompt.dtype), -1)
            return ~tf.reduce_all(tf.reduce_any(is_stop & ~mask, 1))

        def step(prompt, cache, index, mask):
            logits, _, cache = next(prompt, cache, index)
            token = tf.where(mask[:, index], prompt[:, index], self.get_next_token(logits))
            is_here = tf.range(prompt.shape[1]) == index
            return tf.where(is_here, token[:, tf.newaxis], prompt), cache, index + 1, mask

        return self.run_loop(
            has_more, step, loop_vars=(prompt, cache, index, mask), maximum_iterations=prompt.shape[1] - index)[0]

    def run_loop(self, cond: Callable, body: Callable, loop_vars: Any, maximum_iterations: Any) -> Any:
        """Run the loop over tokens with `tf.while_loop`."""
        return tf.while_loop(cond, body, loop_vars, maximum_iterations=maximum_iterations)

    def get_next_token(self, logits: tf.Tensor) -> tf.Tensor:
        """Choose the next tokens, int32 `[batch]`, from logits `[batch, vocab_size]`."""
        seed = tf.convert_to_tensor(self._seed_generator.next())
        return self._sampling.choose(logits, tf.cast(seed, tf.int32))
