"""Beam search: the sequence with the best length-normalised log probability."""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

_IMPOSSIBLE = -1e9


class _Beams(NamedTuple):
    """The state of the search; beams of an example are sorted, the best first.

    Attributes:
        log_probs: log probability of the beginnings `[batch, beam_size]`.
        tokens: their tokens `[batch, beam_size, max_length]`, `end_id` after the known ones.
        scores: scores of the sequences that have ended `[batch, beam_size]`.
        ended: their tokens `[batch, beam_size, max_length]`.
        rows: rows that the beginnings of all examples had in the previous step, `[batch * beam_size]`.
    """

    log_probs: tf.Tensor
    tokens: tf.Tensor
    scores: tf.Tensor
    ended: tf.Tensor
    rows: tf.Tensor

    @property
    def have_ended(self):
        """Whether some sequence has ended, `[batch]`."""
        return self.scores[:, 0] > _IMPOSSIBLE / 2

    @property
    def are_greedy(self):
        return self.log_probs.shape[1] == 1


def beam_search(next_log_probs: Callable, state: Any, batch_size: int, max_length: int, end_id: int,
                beam_size: int = 4, length_penalty: float = 0.6) -> tuple:
    """Searches the sequence with the best length-normalised log probability.

    The score of a sequence Y, including its end, is log P(Y) / ((5 + |Y|) / 6)^length_penalty (GNMT, arXiv 1609.08144,
    equation 14, without the coverage of attention). A beginning is a hypothesis that has not ended. Every step takes
    the `2 * beam_size` best continuations of all beginnings. Those of the best `beam_size` that end are stored, and the
    best `beam_size` of those that do not end continue. An example is done when no beginning can beat the best sequence
    that has ended. A beam of 1 is greedy: it is done with its first end. All shapes are static, so that it compiles for
    any accelerator.

    Args:
        next_log_probs: function from (tokens `[batch_size, beam_size, max_length]`, position scalar, rows
            `[batch_size * beam_size]`, state) to the log probabilities `[batch_size, beam_size, vocab_size]` of the
            token at that position, given those before it, and the next state. `rows` are the rows of the state that the
            beginnings had in the previous call.
        state: nest of tensors for the first call, such as empty caches.
        batch_size: number of examples.
        max_length: number of tokens of the longest sequence, with its end.
        end_id: token that ends a sequence.
        beam_size: number of beginnings that continue.
        length_penalty: exponent; 0 prefers short sequences, 1 is nearly the mean log probability of a token.

    Returns:
        Tokens int32 `[batch_size, max_length]`, `end_id` after the end, and scores `[batch_size]`. A sequence without
        an end is returned only if none has ended.
    """
    def going_on(position, beams, state):
        del state
        return (position < max_length) & ~tf.reduce_all(_is_done(beams, max_length, length_penalty))

    def step(position, beams, state):
        log_probs, state = next_log_probs(beams.tokens, position, beams.rows, state)
        return position + 1, _advance(beams, tf.cast(log_probs, tf.float32), position, end_id, length_penalty), state

    start = _start(batch_size, beam_size, max_length, end_id)
    _, beams, _ = tf.while_loop(going_on, step, (tf.constant(0), start, state))
    unfinished = beams.log_probs[:, 0] / _penalty(max_length, length_penalty)
    tokens = tf.where(beams.have_ended[:, tf.newaxis], beams.ended[:, 0], beams.tokens[:, 0])
    return tokens, tf.where(beams.have_ended, beams.scores[:, 0], unfinished)


def _penalty(length, exponent):
    return ((5.0 + tf.cast(length, tf.float32)) / 6.0) ** exponent


def _start(batch_size, beam_size, max_length, end_id):
    """One empty beginning per example; the other beams only give the shape."""
    log_probs = tf.tile([[0.0] + [_IMPOSSIBLE] * (beam_size - 1)], [batch_size, 1])
    tokens = tf.fill([batch_size, beam_size, max_length], tf.constant(end_id, tf.int32))
    scores = tf.fill([batch_size, beam_size], _IMPOSSIBLE)
    return _Beams(log_probs, tokens, scores, tokens, tf.range(batch_size * beam_size))


def _is_done(beams, max_length, length_penalty):
    """Log probabilities only fall, so a beginning can at best keep its own and end at the greatest length."""
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
    scores, ended = _best(beam_size, tf.concat([beams.scores, scores], 1), tf.concat([beams.ended, tokens], 1))
    first_rows = beam_size * tf.range(log_probs.shape[0])[:, tf.newaxis]
    log_probs, tokens, rows = _best(
        beam_size, tf.where(is_end, _IMPOSSIBLE, totals), tokens, first_rows + places // vocab_size)
    return _Beams(log_probs, tokens, scores, ended, tf.reshape(rows, [-1]))


def _with_token(tokens, chosen, position):
    is_here = tf.range(tokens.shape[2]) == position
    return tf.where(is_here, chosen[:, :, tf.newaxis], tokens)


def _best(count, values, *others):
    values, places = tf.math.top_k(values, count)
    return values, *[tf.gather(other, places, batch_dims=1) for other in others]
