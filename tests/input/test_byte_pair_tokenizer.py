"""Byte-pair tokens, compared with those of KerasHub's tokenizer of the same vocabulary."""

import numpy as np
import pytest
import tensorflow as tf

from lingpipe.input import byte_pair_tokenizer
from tests import needs

pytestmark = needs.keras_hub
TEXT = 'The "for" statement iterates over a sequence — naïve?\n\n\tyes'


@pytest.fixture(name='tokenizer', scope='module')
def tokenizer_fixture():
    return byte_pair_tokenizer.BytePairTokenizer.Params().Set(vocab_size=400, split='dev').Instantiate()


def test_a_text_comes_back(tokenizer):
    tokens = tokenizer.encode(tf.constant(TEXT)).numpy()
    assert tokenizer.decode(tokens) == TEXT
    assert len(tokens) < len(TEXT.encode()) and tokens.max() < 400


def test_tokens_stand_for_the_bytes_of_the_text(tokenizer):
    tokens = tokenizer.encode(tf.constant(TEXT))
    assert tokenizer.num_bytes(tokens).numpy().sum() == len(TEXT.encode())
    assert tokenizer.num_bytes(tokenizer.end_id).numpy() == 1


def test_half_a_letter_shows_as_such(tokenizer):
    tokens = tokenizer.encode(tf.constant('ï')).numpy()
    assert len(tokens) == 2 and tokenizer.decode(tokens[:1]) == '\ufffd'


def test_the_vocabulary_is_always_the_same(tokenizer):
    again = byte_pair_tokenizer.BytePairTokenizer(tokenizer.params)
    np.testing.assert_array_equal(again.encode(tf.constant(TEXT)), tokenizer.encode(tf.constant(TEXT)))


def test_kerashub_makes_the_same_tokens(tokenizer):
    theirs = tokenizer.keras_hub_tokenizer()
    np.testing.assert_array_equal(theirs(TEXT), tokenizer.encode(tf.constant(TEXT)))
    assert theirs.end_token_id == tokenizer.end_id
    assert theirs.pad_token_id == tokenizer.pad_id != tokenizer.end_id  # else KerasHub would not generate


def test_too_few_tokens_for_all_bytes_are_refused():
    with pytest.raises(ValueError, match='vocab_size=256 is too small'):
        byte_pair_tokenizer.BytePairTokenizer.Params().Set(vocab_size=256).Instantiate()
