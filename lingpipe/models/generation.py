"""Text generation by a language model, one token at a time."""

from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from lingpipe.devices import variable_placement
from lingpipe.input import tokenization
from lingpipe.models.sampling import Sampling
from lingpipe.pipeline import gpipe_layer


class IncrementalDecoder:
    """Runs positions of sequences through the stages of a pipeline; each stage keeps its cache on its own device.

        tokens ─> stage 0 (device 0) ─> stage 1 (device 1) ─> logits
                    │  ^                   │  ^
                    v  │                   v  │
                  cache 0                cache 1        keys and values of every attention, [batch, length, heads, h]

    A layer that reads other positions, or needs to know its own, has a method `decode(inputs, cache, start) ->
    outputs, cache`, and `initial_cache(batch_size, length)` if it keeps anything. Layers without `decode` are called
    only on the new positions, so they must map every position separately, as dense layers and layer norms do.

    Caches are variables, because a compiled function may return its results on another device than it computed them on.

    Args:
        stages: list of the `Stage`s of a built `GPipeLayer`.
        batch_size: number of sequences.
        length: largest number of positions.
        read: function that returns the value to use for a Keras variable, such as its moving average.

    Attributes:
        caches: list with a list of nests of `tf.Variable`s for each stage.
    """

    def __init__(self, stages: list, batch_size: int, length: int,
                 read: Callable = variable_placement.read_variable) -> None:
        self._stages, self._read = stages, read
        self.caches = []
        for stage in stages:
            with tf.device(stage.device):
                self.caches.append([_make_cache(layer, batch_size, length) for layer in stage.layers])

    def forward(self, tokens: Any, start: tf.Tensor) -> tf.Tensor:
        """Computes the outputs of the next positions in evaluation mode.

        Args:
            tokens: int32 `[batch, n]`, at positions `start` to `start + n - 1`; previous tokens from `start` on no
                longer count.
            start: int32 scalar tensor.

        Returns:
            Outputs `[batch, n, ...]`, on the device of the last stage.
        """
        x = tokens
        all_values = variable_placement.read_values(self._stages, read=self._read)
        for stage, values, caches in zip(self._stages, all_values, self.caches):
            variables = stage.variables()
            mapping = list(zip(variables.weights + variables.state, values.weights + values.state))
            with tf.device(stage.device), keras.StatelessScope(state_mapping=mapping, initialize_variables=False):
                x = _decode_layers(stage.layers, x, caches, start)
        return x


def _make_cache(layer, batch_size, length):
    if not hasattr(layer, 'initial_cache'):
        return ()
    return tf.nest.map_structure(
        lambda zeros: tf.Variable(zeros, trainable=False), layer.initial_cache(batch_size, length))


def _decode_layers(layers, x, caches, start):
    for layer, cache in zip(layers, caches):
        if not hasattr(layer, 'decode'):
            x = layer(x, training=False)
            continue
        x, new_cache = layer.decode(x, tf.nest.map_structure(lambda variable: variable.read_value(), cache), start)
        tf.nest.map_structure(lambda variable, value: variable.assign(value), cache, new_cache)
    return x


class Generator:
    """Continues token sequences through a pipeline, with a key-value cache on the device of every partition.

        prompt ─> prefill (one call, all positions) ─> token ─> step ─> token ─> step ─> ...

    The two compiled functions have static shapes. A network only has positions up to `context_length`. When a text gets
    longer, its last `context_length // 2` tokens are read again as a new prompt, and generation continues from there.

    Args:
        body: built `GPipeLayer` from tokens `[batch, length]` to logits `[batch, length, vocab_size]`.
        context_length: number of positions, at least 2.
        sampling: `Sampling`.
        read: function that returns the value to use for a Keras variable, such as its moving average.
    """

    def __init__(self, body: gpipe_layer.GPipeLayer, context_length: int, sampling: Sampling,
                 read: Callable = variable_placement.read_variable) -> None:
        if context_length < 2:
            raise ValueError(f'context_length is {context_length}, but a token and the next need 2. Choose a larger '
                             'one.')
        self._decoder = IncrementalDecoder(body.stages, 1, context_length, read)
        self._last_device = body.stages[-1].device
        self._context_length, self._sampling = context_length, sampling.validate()
        self._prefill = tf.function(self._prefill_and_choose, autograph=False)
        self._step = tf.function(self._step_and_choose, autograph=False)

    def tokens(self, prompt: list[int]) -> Iterator[Any]:
        """Generates tokens without end.

        Args:
            prompt: sequence of one token or more; if it is longer than the context, only its end counts.

        Yields:
            Integers, the tokens that follow the prompt.
        """
        known, position = list(prompt)[-self._context_length:], self._context_length
        for draw in range(np.iinfo(np.int32).max):
            if position == self._context_length:
                known = known if draw == 0 else known[-(self._context_length // 2):]
                token = self._prefill(self._padded(known), tf.constant(len(known)), tf.constant(draw))
                position = len(known)
            else:
                token = self._step(token, tf.constant(position), tf.constant(draw))
                position += 1
            known.append(int(token[0]))
            yield known[-1]

    def _padded(self, known):
        return tf.constant([known + [0] * (self._context_length - len(known))], tf.int32)

    def _prefill_and_choose(self, tokens, length, draw):
        """Reads a padded prompt and chooses a token; the padding has no effect, because attention only looks back."""
        logits = self._decoder.forward(tokens, tf.constant(0))
        return self._choose(logits, length - 1, draw)

    def _step_and_choose(self, token, position, draw):
        return self._choose(self._decoder.forward(token[:, tf.newaxis], position), 0, draw)

    def _choose(self, logits, place, draw):
        with tf.device(self._last_device):
            return self._sampling.choose(logits[:, place], tf.stack([tf.constant(self._sampling.seed, tf.int32), draw]))


def text_pieces(generator: Generator, tokenizer: Any, prompt: str, num_tokens: int) -> Iterator[Any]:
    """Generates a text in pieces, so that it can be shown while the model writes.

    Args:
        generator: `Generator`.
        tokenizer: tokenizer of the model's input.
        prompt: text at the start of a document.
        num_tokens: largest number of tokens; there are fewer if the model ends the document.

    Yields:
        Pieces of the continuation that do not end in the middle of a character.
    """
    known = tokenization.prompt_tokens(tokenizer, prompt)
    written, shown = [], 0
    for _, token in zip(range(num_tokens), generator.tokens(known)):
        if token in tokenizer.stop_ids:
            break
        written.append(token)
        text = tokenization.continuation(tokenizer, known, written)
        if not text.endswith('\ufffd'):
            yield text[shown:]
            shown = len(text)
    if rest := tokenization.continuation(tokenizer, known, written)[shown:]:
        yield rest
