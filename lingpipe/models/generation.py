"""Text that a language model writes, a token at a time, and beam search."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from lingpipe.devices import variable_placement

_IMPOSSIBLE = -1e9


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

    def validate(self) -> Any:
        """Returns itself.

        Raises:
            ValueError: a field cannot work.
        """
        if not 0 <= self.temperature < float('inf'):
            raise ValueError(f'temperature={self.temperature} is not possible: it must be 0 or a positive number. Set '
                             'it to 0.8, for instance, or to 0 for the likeliest tokens.')
        for field, value in (('top_k', self.top_k), ('seed', self.seed)):
            if value < 0:
                raise ValueError(f'{field}={value} is not possible: it must be an integer of 0 or more. Set it to 0 at '
                                 'least.')
        return self

    def choose(self, logits: Any, draw: tf.Tensor) -> Any:
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


class IncrementalDecoder:
    """Runs positions of sequences through the stages of a pipeline, each of which keeps its cache on its own device.

        tokens ─> stage 0 (device 0) ─> stage 1 (device 1) ─> logits
                    │  ^                   │  ^
                    v  │                   v  │
                  cache 0                cache 1        keys and values of every attention, [batch, length, heads, h]

    A layer that looks at other positions, or needs to know its own, has a method `decode(inputs, cache, start) ->
    outputs, cache`, and `initial_cache(batch_size, length)` where it keeps anything. Layers without `decode` are called
    on the new positions alone, so they must map every position by itself, as dense layers and layer norms do.

    Caches are variables, since a compiled function may hand its results out on another device than it made them on.

    Args:
        stages: list of the `Stage`s of a built `GPipeLayer`.
        batch_size: number of sequences.
        length: largest number of positions.
        read: function that gives the value to use for a Keras variable, such as its moving average.

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

    def forward(self, tokens: Any, start: tf.Tensor) -> Any:
        """Computes the outputs of the next positions in evaluation mode.

        Args:
            tokens: int32 `[batch, n]`, at positions `start` to `start + n - 1`; what was there or later counts no more.
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


from lingpipe.devices import variable_placement


class Generator:
    """Continues token sequences through a pipeline, with a key-value cache on the device of every partition.

        prompt ─> prefill (one call, all positions) ─> token ─> step ─> token ─> step ─> ...

    The two compiled functions have static shapes. A network knows positions up to `context_length` only: where a text
    gets longer, its last half context is read again as if it were the start, and goes on from there.

    Args:
        body: built `GPipeLayer` from tokens `[batch, length]` to logits `[batch, length, vocab_size]`.
        context_length: number of positions, at least 2.
        sampling: `Sampling`.
        read: function that gives the value to use for a Keras variable, such as its moving average.
    """

    def __init__(self, body: Any, context_length: int, sampling: Sampling,
                 read: Callable = variable_placement.read_variable) -> None:
        if context_length < 2:
            raise ValueError(f'context_length is {context_length}, but a token and the next need 2. Choose a larger '
                             'one.')
        self._decoder = IncrementalDecoder(body.stages, 1, context_length, read)
        self._last_device = body.stages[-1].device
        self._context_length, self._sampling = context_length, sampling.validate()
        self._prefill = tf.function(self._prefill_and_choose, autograph=False)
        self._step = tf.function(self._step_and_choose, autograph=False)

    def tokens(self, prompt: Any) -> Iterator[Any]:
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


def text_pieces(generator: Generator, tokenizer: Any, prompt: str, num_tokens: int) -> Iterator[Any]:
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


class _Beams(NamedTuple):
    """Where the search stands; beams of an example are sorted, the best first.

    Attributes:
        log_probs: log probability of the beginnings `[batch, beam_size]`.
        tokens: their tokens `[batch, beam_size, max_length]`, `end_id` after what is known.
        scores: scores of the sequences that have ended `[batch, beam_size]`.
        ended: their tokens `[batch, beam_size, max_length]`.
    """

    log_probs: tf.Tensor
    tokens: tf.Tensor
    scores: tf.Tensor
    ended: tf.Tensor

    @property
    def have_ended(self):
        """Whether some sequence has, `[batch]`."""
        return self.scores[:, 0] > _IMPOSSIBLE / 2

    @property
    def are_greedy(self):
        return self.log_probs.shape[1] == 1


def beam_search(next_log_probs: Callable, batch_size: int, max_length: int, end_id: Any, beam_size: int = 4,
                length_penalty: Any = 0.6) -> Any:
    """Searches the sequence with the best length-normalised log probability.

    The score of a sequence Y, its end counted, is log P(Y) / ((5 + |Y|) / 6)^length_penalty (GNMT, arXiv 1609.08144,
    equation 14, without the coverage of attention). In every step the `beam_size` best continuations of all beginnings
    are looked at: those that end here are put aside, and of the others the best go on. An example is done when no
    beginning can beat the best sequence that has ended. A beam of 1 is greedy: it is done with its first end. All
    shapes are static, so that it compiles for any accelerator.

    Args:
        next_log_probs: function from (tokens `[batch_size, beam_size, max_length]`, position scalar) to the log
            probabilities `[batch_size, beam_size, vocab_size]` of the token at that position, given those before it.
        batch_size: number of examples.
        max_length: number of tokens of the longest sequence, with its end.
        end_id: token that ends a sequence.
        beam_size: number of beginnings that go on.
        length_penalty: exponent; 0 prefers short sequences, 1 is nearly the mean log probability of a token.

    Returns:
        Tokens int32 `[batch_size, max_length]`, `end_id` after the end, and scores `[batch_size]`. A sequence that has
        no end comes out only where none has ended.
    """
    def going_on(position, beams):
        return (position < max_length) & ~tf.reduce_all(_is_done(beams, max_length, length_penalty))

    def step(position, beams):
        log_probs = tf.cast(next_log_probs(beams.tokens, position), tf.float32)
        return position + 1, _advance(beams, log_probs, position, end_id, length_penalty)

    start = _start(batch_size, beam_size, max_length, end_id)
    _, beams = tf.while_loop(going_on, step, (tf.constant(0), start))
    unfinished = beams.log_probs[:, 0] / _penalty(max_length, length_penalty)
    tokens = tf.where(beams.have_ended[:, tf.newaxis], beams.ended[:, 0], beams.tokens[:, 0])
    return tokens, tf.where(beams.have_ended, beams.scores[:, 0], unfinished)


def _penalty(length, exponent):
    return ((5.0 + tf.cast(length, tf.float32)) / 6.0) ** exponent


def _start(batch_size, beam_size, max_length, end_id):
    """One empty beginning an example; the other beams are there for the shape only."""
    log_probs = tf.tile([[0.0] + [_IMPOSSIBLE] * (beam_size - 1)], [batch_size, 1])
    tokens = tf.fill([batch_size, beam_size, max_length], tf.constant(end_id, tf.int32))
    return _Beams(log_probs, tokens, tf.fill([batch_size, beam_size], _IMPOSSIBLE), tokens)


def _is_done(beams, max_length, length_penalty):
    """Log probabilities only fall, so a beginning scores best if it ends with nothing lost at the greatest length."""
    if beams.are_greedy:
        return beams.have_ended
    attainable = beams.log_probs[:, 0] / _penalty(max_length, length_penalty)
    return beams.have_ended & (beams.scores[:, 0] >= attainable)


def _advance(beams, log_probs, position, end_id, length_penalty):
    beam_size, vocab_size = log_probs.shape[1:]
    totals = tf.reshape(beams.log_probs[:, :, tf.newaxis] + log_probs, [-1, beam_size * vocab_size])
    totals, places = tf.math.top_k(totals, 2 * beam_size)  # at most half of them end: one for each beginning
    chosen = places % vocab_size
    tokens = _with_token(tf.gather(beams.tokens, places // vocab_size, batch_dims=1), chosen, position)
    is_end = chosen == end_id
    ends_now = is_end & (totals > _IMPOSSIBLE / 2) & (tf.range(2 * beam_size) < beam_size)
    if beams.are_greedy:
        ends_now &= ~beams.have_ended[:, tf.newaxis]
    scores = tf.where(ends_now, totals / _penalty(position + 1, length_penalty), _IMPOSSIBLE)
    scores, ended = _best(tf.concat([beams.scores, scores], 1), tf.concat([beams.ended, tokens], 1), beam_size)
    return _Beams(*_best(tf.where(is_end, _IMPOSSIBLE, totals), tokens, beam_size), scores, ended)


def _with_token(tokens, chosen, position):
    is_here = tf.range(tokens.shape[2]) == position
    return tf.where(is_here, chosen[:, :, tf.newaxis], tokens)


def _best(values, tokens, count):
    values, places = tf.math.top_k(values, count)
    return values, tf.gather(tokens, places, batch_dims=1)
