"""The tokenizer of a preset, compared with what KerasHub's own preprocessor and generation do with it."""

import numpy as np
import pytest

from lingpipe.input import hub_tokenizer, tokenization
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
