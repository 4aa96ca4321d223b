"""The tokenizer of a preset, compared with what KerasHub's own preprocessor and generation do with it."""

import numpy as np
import pytest
import tensorflow as tf

from lingpipe.input import hub_tokenizer, text_input, tokenization
from tests import needs
from tests.input import hub_presets

pytestmark = needs.keras_hub


def tokenizer_of(folder):
    return hub_tokenizer.KerasHubTokenizer.Params().Set(preset=str(folder)).Instantiate()


@pytest.mark.parametrize('name', ['gpt2', 'llama3', 'gemma'])
def test_a_prompt_begins_as_in_kerashub(name, tmp_path):
    plain = getattr(hub_presets, name)(tmp_path).preprocessor.generate_preprocess('a b')
    found = tokenization.prompt_tokens(tokenizer_of(tmp_path), 'a b')
    assert found == np.array(plain['token_ids'])[np.array(plain['padding_mask'], bool)].tolist()


def test_llama_has_two_stops(tmp_path):
    plain = hub_presets.llama3(tmp_path).preprocessor.tokenizer
    assert tokenizer_of(tmp_path).stop_ids == (plain.end_token_id, plain.end_token2_id) == (1, 4)


def test_a_text_without_a_start_follows_the_end_of_another(tmp_path):
    hub_presets.qwen(tmp_path)
    tokenizer = tokenizer_of(tmp_path)
    assert tokenization.prompt_tokens(tokenizer, 'a') == [2]
    assert tokenization.prompt_tokens(tokenizer, '') == [tokenizer.end_id] == [1]


def test_special_tokens_are_no_text_and_padding_may_be(tmp_path):
    hub_presets.gpt2(tmp_path)
    assert tokenizer_of(tmp_path).decode([1, 2, 0, 1]) == 'a!'


def test_a_space_before_a_continuation_stays(tmp_path):
    hub_presets.gemma(tmp_path)
    tokenizer = tokenizer_of(tmp_path)
    known, written = (tokenizer.encode(text).numpy().tolist() for text in ('a', 'b'))
    assert tokenization.continuation(tokenizer, known, written) == ' b'


def test_byte_pairs_stand_for_the_bytes_of_their_letters(tmp_path):
    own = tokenization.BytePairTokenizer.Params().Set(dataset='pydoc_topics', split='dev', vocab_size=300).Instantiate()
    hub_presets.gpt2(tmp_path, tokenizer=own.keras_hub_tokenizer())
    found = tokenizer_of(tmp_path)
    real = tf.range(1, 300)  # token 0 is padding, which KerasHub takes for a text
    np.testing.assert_array_equal(found.num_bytes(real), own.num_bytes(real))
    text = text_input.TextInput.Params().Set(split='dev', batch_size=4, sequence_length=8, tokenizer=found.params)
    tokens, labels, _, num_bytes = next(iter(text.Instantiate().evaluation_dataset()))
    assert tokens[0, 0] == own.end_id
    np.testing.assert_array_equal(num_bytes, own.num_bytes(labels))


def test_documents_begin_with_a_start_that_is_no_end(tmp_path):
    hub_presets.llama3(tmp_path)
    text = text_input.TextInput.Params().Set(
        split='dev[:2]', batch_size=4, sequence_length=8, tokenizer=tokenizer_of(tmp_path).params)
    tokens = text.Instantiate().tokens
    assert tokens[0] == 0 and tokens[-1] == 1
    assert sum(tokens == 0) == sum(tokens == 1) == 2


@pytest.mark.parametrize('has_space_before', [True, False])
def test_pieces_stand_for_the_bytes_of_a_text(has_space_before, tmp_path):
    hub_presets.gemma(tmp_path, add_dummy_prefix=has_space_before, byte_fallback=True, vocab_size=275)
    tokenizer = tokenizer_of(tmp_path)
    for text in ('ab c', 'é\u4e2d a', 'x'):
        tokens = [*tokenizer.start_ids, *tokenizer.encode(tf.constant(text)).numpy(), tokenizer.end_id]
        assert sum(tokenizer.num_bytes(tokens).numpy()) == len(text.encode()) + 1, text


def test_words_do_not_say_what_stood_between_them(tmp_path):
    hub_presets.bert(tmp_path)
    with pytest.raises(ValueError, match='BertTokenizer, whose tokens do not say how many bytes'):
        tokenizer_of(tmp_path).num_bytes([0])


def test_a_folder_that_is_no_preset_is_said_to_be_none(tmp_path):
    with pytest.raises(ValueError, match='has no config.json'):
        tokenizer_of(tmp_path)
