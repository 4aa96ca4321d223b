"""Texts after several prompts at once, compared with a network that reads every text as a whole."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from lingpipe.input import tokenization
from lingpipe.layers import transformer
from lingpipe.models import prompted_texts
from lingpipe.models.sampling import Sampling
from lingpipe.pipeline import gpipe_layer

CONTEXT = 12
PROMPTS = ['a', 'def', 'if x', 'b', '']


def make_body(num_partitions=2):
    keras.utils.set_random_seed(0)
    stack = transformer.transformer_lm_layers(
        2, vocab_size=256, model_dim=16, hidden_dim=24, num_heads=2, positions='rotary')
    body = gpipe_layer.GPipeLayer.Params().Set(name='body', layers=stack, num_partitions=num_partitions).Instantiate()
    body.build_from_specs(tf.TensorSpec([2, CONTEXT], tf.int32))
    random = np.random.default_rng(0)
    for variable in body.trainable_variables:
        variable.assign(variable + random.normal(scale=0.3, size=variable.shape))
    return body


class Letters(tokenization.ByteTokenizer):
    """Shows every token, that of the end too."""

    def decode(self, tokens):
        return [int(token) for token in tokens]


@pytest.fixture(name='tokenizer', scope='module')
def tokenizer_fixture():
    return Letters.Params().Instantiate()


@pytest.fixture(name='body', scope='module')
def body_fixture():
    return make_body()


def test_greedy_texts_take_the_largest_logit_at_every_position(body, tokenizer):
    found = prompted_texts.PromptedTexts(body, tokenizer, CONTEXT, Sampling(temperature=0.0)).texts(PROMPTS, 6)
    for prompt, continuation in zip(PROMPTS, found):
        known = [0, *prompt.encode()]
        sequence = np.array([known + continuation + [0] * (CONTEXT - len(known) - len(continuation))] * 2)
        best = body(sequence).numpy()[0].argmax(-1)[len(known) - 1:]
        np.testing.assert_array_equal(continuation, best[:len(continuation)])
        assert len(continuation) == 6 or best[len(continuation)] == 0


def test_draws_are_the_same_for_any_number_of_partitions(body, tokenizer):
    sampling = Sampling(temperature=1.5, top_k=0, top_p=0.9, seed=3)
    found = prompted_texts.PromptedTexts(body, tokenizer, CONTEXT, sampling).texts(PROMPTS, 6)
    assert found == prompted_texts.PromptedTexts(make_body(1), tokenizer, CONTEXT, sampling).texts(PROMPTS, 6)
    assert found != prompted_texts.PromptedTexts(
        body, tokenizer, CONTEXT, sampling._replace(seed=4)).texts(PROMPTS, 6)


def test_a_prompt_that_fills_the_context_is_refused(body, tokenizer):
    writer = prompted_texts.PromptedTexts(body, tokenizer, CONTEXT, Sampling())
    with pytest.raises(ValueError, match='Prompt 2 has 12 tokens.*Give a shorter prompt'):
        writer.texts(['a', 'b' * 12], 6)


def test_beams_are_for_tasks_of_kerashub(body, tokenizer):
    with pytest.raises(ValueError, match='num_beams=2 is for tasks of KerasHub'):
        prompted_texts.PromptedTexts(body, tokenizer, CONTEXT, Sampling(num_beams=2))
