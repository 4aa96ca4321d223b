"""Text that a language model writes, a token at a time."""

import numpy as np
import tensorflow as tf

from lingpipe.models import incremental_decoding
from lingpipe.pipeline import variable_values


class Generator:
    """Continues token sequences through a pipeline, with a key-value cache on the device of every partition.

        prompt ─> prefill (one call, all positions) ─> token ─> step ─> token ─> step ─> ...

    The two compiled functions have static shapes. A network knows positions up to `context_length` only: where a text gets
    longer, its last half context is read again as if it were the start, and goes on from there.

    Args:
        body: built `GPipeLayer` from tokens `[batch, length]` to logits `[batch, length, vocab_size]`.
        context_length: number of positions, at least 2.
        sampling: `Sampling`.
        read: function that gives the value to use for a Keras variable, such as its moving average.
    """

    def __init__(self, body, context_length, sampling, read=variable_values.read_variable):
        if context_length < 2:
            raise ValueError(f'context_length is {context_length}, but a token and the next need 2. Choose a larger one.')
        self._decoder = incremental_decoding.IncrementalDecoder(body.stages, 1, context_length, read)
        self._last_device = body.stages[-1].device
        self._context_length, self._sampling = context_length, sampling.validate()
        self._prefill = tf.function(self._prefill_and_choose, autograph=False)
        self._step = tf.function(self._step_and_choose, autograph=False)

    def tokens(self, prompt):
        """Generates tokens without end.

        Args:
            prompt: sequence of one token or more; of one longer than the context only the end counts.

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
        """What stands after the prompt is seen by nobody: attention looks back, and later tokens take its place."""
        logits = self._decoder.forward(tokens, tf.constant(0))
        return self._choose(logits, length - 1, draw)

    def _step_and_choose(self, token, position, draw):
        return self._choose(self._decoder.forward(token[:, tf.newaxis], position), 0, draw)

    def _choose(self, logits, place, draw):
        with tf.device(self._last_device):
            return self._sampling.choose(logits[:, place], draw)


def text_pieces(generator, tokenizer, prompt, num_tokens):
    """Generates text.

    Args:
        generator: `Generator`.
        tokenizer: tokenizer of the model's input.
        prompt: text that stands at the start of a document.
        num_tokens: largest number of tokens; less where the model ends the document.

    Yields:
        Pieces of the continuation, none of which ends in the middle of a character.
    """
    known = [tokenizer.end_id, *tokenizer.encode(tf.constant(prompt)).numpy().tolist()]
    written, shown = [], 0
    for _, token in zip(range(num_tokens), generator.tokens(known)):
        if token == tokenizer.end_id:
            break
        written.append(token)
        text = tokenizer.decode(written)
        if not text.endswith('\ufffd'):
            yield text[shown:]
            shown = len(text)
    if rest := tokenizer.decode(written)[shown:]:
        yield rest
