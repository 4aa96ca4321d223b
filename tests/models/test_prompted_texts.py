"""Texts after several prompts at once, compared with a network that reads every text as a whole and with plain KerasHub."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import lingpipe
from lingpipe.input import hub_inputs, hub_tokenizer, tokenization
from lingpipe.layers import transformer
from lingpipe.models import prompted_texts
from lingpipe.models.sampling import Sampling
from lingpipe.pipeline import gpipe_layer
from tests import needs
from tests.input import hub_presets

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


LENGTH, HUB_PROMPTS = 16, ['a', 'c d', 'b a', 'd']


def as_if_trained(task, folder):
    """Fresh weights write the same token for ever."""
    random = np.random.default_rng(1)
    for variable in task.trainable_variables:
        variable.assign(variable + 0.5 * random.normal(size=variable.shape))
    task.save_to_preset(str(folder))
    return task


def texts(folder, prompts, sampling):
    body = gpipe_layer.GPipeLayer.from_preset(str(folder), num_partitions=2, devices=['CPU:1', 'CPU:2'])
    tokenizer = hub_tokenizer.KerasHubTokenizer.Params().Set(preset=str(folder)).Instantiate()
    found = prompted_texts.PromptedTexts(body, tokenizer, LENGTH, sampling).texts(prompts, LENGTH)
    return [prompt + text for prompt, text in zip(prompts, found)]


@needs.keras_hub
@pytest.mark.parametrize('name', ['gpt2', 'llama3', pytest.param('gemma', marks=pytest.mark.slow)])
def test_texts_are_those_of_the_plain_preset(name, tmp_path):
    keras.utils.set_random_seed(0)
    plain = as_if_trained(getattr(hub_presets, name)(tmp_path, LENGTH), tmp_path)
    plain.compile(sampler='greedy', jit_compile=False)
    expected = plain.generate(HUB_PROMPTS)
    assert texts(tmp_path, HUB_PROMPTS, Sampling(temperature=0.0)) == expected
    assert len(set(map(len, expected))) > 1  # some have ended before others


SOURCES = ['ab', 'd c a', 'abcd', 'c']


@pytest.fixture(name='preset', scope='module')
def preset_fixture(tmp_path_factory):
    """Folder of a preset with weights that are not all alike, and the plain task."""
    folder = str(tmp_path_factory.mktemp('presets') / 'bart')
    task = hub_presets.bart(folder)
    random = np.random.default_rng(5)  # with which targets differ
    for variable in task.trainable_variables:
        variable.assign(variable + 0.3 * random.normal(size=variable.shape))
    task.save_to_preset(folder)
    task.compile(sampler='greedy', jit_compile=False)
    return folder, task


@pytest.fixture(name='writer', scope='module')
def writer_fixture(preset):
    folder, _ = preset
    tokenizer = hub_tokenizer.KerasHubTokenizer.Params().Set(preset=folder).Instantiate()
    spec = hub_inputs.SequenceToSequenceInput.InputSpec(
        hub_inputs.SequenceToSequenceInput.Params().Set(sequence_length=8, target_length=6))
    body = lingpipe.GPipeLayer.from_preset(folder, 'seq_2_seq_lm', num_partitions=2)
    body.build_from_specs(spec)
    return prompted_texts.text_writer(body, tokenizer, spec, Sampling(temperature=0.0))


@needs.keras_hub
def test_targets_are_those_of_plain_kerashub(preset, writer):
    found = writer.texts(SOURCES, 3)
    assert found == preset[1].generate(SOURCES, max_length=5) and len(set(found)) > 1
    assert writer.shown('ab', 'c') == 'ab -> c'


@needs.keras_hub
@pytest.mark.parametrize(('source', 'words'), [
    ('', 'Prompt 2 has 0 tokens, but the model reads 1 to 6'), ('abcdabc', 'Prompt 2 has 7 tokens.*sequence_length')])
def test_a_source_that_the_model_cannot_read_is_refused(writer, source, words):
    with pytest.raises(ValueError, match=words):
        writer.texts(['a', source], 6)
