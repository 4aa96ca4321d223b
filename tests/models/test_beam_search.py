import itertools

import numpy as np
import pytest
import tensorflow as tf

from lingpipe.models import beam_search
from tests import needs

V, T, BATCH, END = 3, 4, 5, 0


def tables(seed, sharpness=2.0):
    """Log probabilities of the next token after every prefix, `[batch, V^(T-1), T, V]`, prefixes as numbers to base
    V."""
    logits = sharpness * np.random.default_rng(seed).normal(size=(BATCH, V ** (T - 1), T, V))
    return (logits - np.log(np.exp(logits).sum(-1, keepdims=True))).astype(np.float32)


def number_of(prefix):
    return sum(token * V**place for place, token in enumerate(prefix))


def next_log_probs(table):
    powers = tf.constant(V ** np.arange(T - 1), tf.int32)

    def of_prefix(tokens, position, rows, numbers):
        """The state has the numbers of all prefixes but for their last tokens, in the order of the call before."""
        last = tf.where(position > 0, tokens[:, :, position - 1] * powers[position - 1], 0)
        numbers = tf.gather(numbers, rows) + tf.reshape(last, [-1])
        places = tf.reshape(numbers, [BATCH, -1])
        return tf.gather(tf.constant(table)[:, :, position], places, batch_dims=1), numbers

    return of_prefix


def of(table, beam_size=4, **fields):
    state = tf.zeros([BATCH * beam_size], tf.int32)
    return beam_search.beam_search(next_log_probs(table), state, BATCH, T, END, beam_size, **fields)


def search(table, **fields):
    function = tf.function(lambda: of(table, **fields), autograph=False)
    return [part.numpy() for part in function()]


def score(table, sequence, length_penalty):
    log_prob = sum(table[number_of(sequence[:place]), place, token] for place, token in enumerate(sequence))
    return log_prob / ((5 + len(sequence)) / 6) ** length_penalty


def best(table, length_penalty):
    ended = [(*prefix, END) for length in range(T) for prefix in itertools.product(range(1, V), repeat=length)]
    winner = max(ended, key=lambda sequence: score(table, sequence, length_penalty))
    return list(winner) + [END] * (T - len(winner)), score(table, winner, length_penalty)


def greedy(table):
    tokens = []
    while len(tokens) < T and (not tokens or tokens[-1] != END):
        tokens.append(int(table[number_of(tokens), len(tokens)].argmax()))
    return tokens + [END] * (T - len(tokens))


@pytest.mark.parametrize('length_penalty', [0.0, 0.6, 1.0])
@pytest.mark.parametrize('seed', [0, 1])
def test_a_wide_beam_finds_the_best_of_all_sequences(seed, length_penalty):
    table = tables(seed)
    tokens, scores = search(table, beam_size=V**T, length_penalty=length_penalty)
    for row, value, of_example in zip(tokens, scores, table):
        expected, expected_score = best(of_example, length_penalty)
        assert row.tolist() == expected
        assert value == pytest.approx(expected_score, rel=1e-5)


def test_a_beam_of_one_is_greedy():
    for seed in range(4):
        table = tables(seed)
        assert search(table, beam_size=1)[0].tolist() == [greedy(part) for part in table]


def test_a_beam_finds_what_greed_misses():
    table = np.log(np.full((BATCH, V ** (T - 1), T, V), 1 / 3, np.float32))
    table[:, 0, 0] = np.log([0.01, 0.5, 0.49])  # 1 looks better at first, but 2 goes on with certainty
    table[:, number_of([2]), 1] = np.log([0.98, 0.01, 0.01])
    assert search(table, beam_size=1)[0][0].tolist()[0] == 1
    tokens, scores = search(table, beam_size=2, length_penalty=0.0)
    assert tokens[0].tolist() == [2, 0, 0, 0]
    assert np.exp(scores[0]) == pytest.approx(0.49 * 0.98, rel=1e-5)


def test_a_sequence_without_end_comes_out_where_none_ends():
    table = np.log(np.full((BATCH, V ** (T - 1), T, V), 1e-6, np.float32))
    table[..., 2], table[..., END] = 0.0, -np.inf
    tokens, scores = search(table, beam_size=2)
    assert tokens.tolist() == [[2] * T] * BATCH
    np.testing.assert_allclose(scores, 0.0, atol=1e-6)


@needs.xla_on_cpus
def test_all_of_it_compiles_for_xla():
    table = tables(3)
    compiled = tf.function(lambda: of(table, beam_size=2), autograph=False, jit_compile=True)
    for part, other in zip(compiled(), search(table, beam_size=2)):
        np.testing.assert_allclose(part, other, rtol=1e-5)
