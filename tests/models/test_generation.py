import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from lingpipe.input import tokenization
from lingpipe.layers import attention, transformer
from lingpipe.models import generation
from lingpipe.models.sampling import Sampling
from lingpipe.pipeline import gpipe_layer

CONTEXT = 12
PROMPT = [0, 7, 3, 11]
GREEDY = Sampling(temperature=0.0)


def make_body(num_partitions=2, dtype_policy=None, num_layers=1, **fields):
    keras.utils.set_random_seed(0)
    stack = transformer.transformer_lm_layers(
        num_layers, vocab_size=16, model_dim=16, hidden_dim=24, num_heads=2, residual_dropout_prob=0.5, **fields)
    p = gpipe_layer.GPipeLayer.Params().Set(
        name='body', layers=stack, num_partitions=num_partitions, num_micro_batches=2, random_seed=0,
        dtype_policy=dtype_policy)
    body = p.Instantiate()
    body.build_from_specs(tf.TensorSpec([2, CONTEXT], tf.int32))
    generator = np.random.default_rng(0)
    for variable in body.trainable_variables:  # as if trained: fresh logits hardly differ
        variable.assign(variable + generator.normal(scale=0.3, size=variable.shape))
    return body


@pytest.fixture(scope='module')
def body():
    return make_body()


def generate(body, prompt, num_tokens, sampling=GREEDY, **fields):
    return list(itertools.islice(generation.Generator(body, CONTEXT, sampling, **fields).tokens(prompt), num_tokens))


@pytest.mark.parametrize('fields', [
    {'positions': 'sinusoidal', 'is_tied': True}, {'positions': 'learned', 'max_length': CONTEXT},
    {'positions': 'rotary', 'is_gated': True, 'num_partitions': 1},
    {'positions': 'rotary', 'is_tied': True, 'num_partitions': 4, 'num_layers': 2}])
def test_logits_with_a_cache_are_those_of_the_whole_sequence(fields):
    body = make_body(**fields)
    decoder = generation.IncrementalDecoder(body.stages, 2, CONTEXT)
    tokens = np.random.default_rng(1).integers(0, 16, (2, CONTEXT)).astype(np.int32)
    expected = body(tokens).numpy()
    forward = tf.function(decoder.forward, autograph=False)
    parts, start = [], 0
    for size in (4, 4, 1, 1, 1, 1):
        parts.append(forward(tokens[:, start:start + size], tf.constant(start)))
        start += size
    np.testing.assert_allclose(np.concatenate(parts, 1), expected, atol=2e-5)
    for stage, caches in zip(body.stages, decoder.caches):
        assert all(variable.device.endswith(stage.device) for variable in tf.nest.flatten(caches)), stage.device


def test_greedy_generation_takes_the_largest_logit_at_every_position(body):
    """The logits are those of one call on the whole sequence."""
    sequence = PROMPT + generate(body, PROMPT, CONTEXT + 1 - len(PROMPT))
    best = body(np.array([sequence[:CONTEXT]] * 2)).numpy()[0].argmax(-1)
    np.testing.assert_array_equal(sequence[len(PROMPT):], best[len(PROMPT) - 1:])


def test_beyond_the_context_the_last_half_of_it_is_read_again(body):
    sequence = PROMPT + generate(body, PROMPT, 2 * CONTEXT)
    window = sequence[CONTEXT + 1 - CONTEXT // 2:CONTEXT + 1]
    assert sequence[CONTEXT + 1:CONTEXT + 7] == generate(body, window, 6)


def test_of_a_prompt_longer_than_the_context_the_end_counts(body):
    prompt = list(np.random.default_rng(2).integers(0, 16, 3 * CONTEXT))
    token = generate(body, prompt, 1)
    assert token == generate(body, prompt[-CONTEXT:], 1)
    assert token == [body(np.array([prompt[-CONTEXT:]] * 2)).numpy()[0, -1].argmax()]


def test_a_seed_gives_the_same_tokens_on_any_number_of_partitions(body):
    sampling = Sampling(temperature=2.0, top_k=0, seed=3)
    tokens = generate(body, PROMPT, 20, sampling)
    assert tokens == generate(make_body(1), PROMPT, 20, sampling)
    assert tokens != generate(body, PROMPT, 20, sampling._replace(seed=4))


def test_weights_are_read_again_for_every_token():
    """The function that is given reads them, where there is one."""
    body = make_body()
    zeros = generate(body, PROMPT, 3, read=lambda variable: tf.zeros_like(variable.value))
    assert zeros == [0, 0, 0]
    generator = generation.Generator(body, CONTEXT, GREEDY)
    before = list(itertools.islice(generator.tokens(PROMPT), 3))
    for variable in body.trainable_variables:
        variable.assign(tf.zeros(variable.shape))
    assert before != [0, 0, 0] == list(itertools.islice(generator.tokens(PROMPT), 3))


def test_a_model_in_bfloat16_keeps_its_cache_in_bfloat16():
    body = make_body(dtype_policy='mixed_bfloat16')
    decoder = generation.IncrementalDecoder(body.stages, 2, CONTEXT)
    assert {variable.dtype for variable in tf.nest.flatten(decoder.caches)} == {tf.bfloat16}
    tokens = np.array([PROMPT] * 2, np.int32)
    logits = decoder.forward(tokens, tf.constant(0))
    assert logits.dtype == tf.float32
    np.testing.assert_allclose(logits, body(tokens), atol=0.1)


def test_attention_that_looks_ahead_is_refused():
    p = attention.MultiHeadAttention.Params().Set(name='both_ways', num_heads=1, is_causal=False)
    layer = p.Instantiate()
    layer.build((1, 4, 2))
    with pytest.raises(ValueError, match="is_causal is False in 'both_ways'.*Set it to True"):
        layer.decode(tf.zeros([1, 1, 2]), layer.initial_cache(1, 4), 0)


class _Spelling:
    """A generator of given tokens."""

    def __init__(self, tokens):
        self._tokens = tokens

    def tokens(self, prompt):
        self.prompt = prompt
        yield from self._tokens


def test_text_comes_in_whole_characters_and_stops_where_the_document_ends():
    tokenizer = tokenization.ByteTokenizer.Params().Instantiate()
    spelling = _Spelling([*'aλ!'.encode(), 0, 65])
    assert list(generation.text_pieces(spelling, tokenizer, 'Grün', 10)) == ['a', 'λ', '!']
    assert spelling.prompt == [0, *'Grün'.encode()]
    assert list(generation.text_pieces(spelling, tokenizer, '', 2)) == ['a', '\ufffd']


def test_a_context_of_one_token_is_refused(body):
    with pytest.raises(ValueError, match='context_length is 1'):
        generation.Generator(body, 1, GREEDY)
