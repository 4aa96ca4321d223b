"""Byte-pair tokens, compared with those of KerasHub's tokenizer of the same vocabulary."""

import numpy as np
import pytest
import tensorflow as tf

from lingpipe.input import tokenization
from tests import needs

pytestmark = needs.keras_hub
TEXT = 'The "for" statement iterates over a sequence — naïve?\n\n\tyes'


@pytest.fixture(name='tokenizer', scope='module')
def tokenizer_fixture():
    return tokenization.BytePairTokenizer.Params().Set(dataset='pydoc_topics', vocab_size=400, split='dev').Instantiate()


def test_a_text_comes_back(tokenizer):
    tokens = tokenizer.encode(tf.constant(TEXT)).numpy()
    assert tokenizer.decode(tokens) == TEXT
    assert len(tokens) < len(TEXT.encode()) and tokens.max() < 400


def test_tokens_stand_for_the_bytes_of_the_text(tokenizer):
    tokens = tokenizer.encode(tf.constant(TEXT))
    assert tokenizer.num_bytes(tokens).numpy().sum() == len(TEXT.encode())
    assert tokenizer.num_bytes(tokenizer.end_id).numpy() == 1


def test_kerashub_makes_the_same_tokens(tokenizer):
    theirs = tokenizer.keras_hub_tokenizer()
    np.testing.assert_array_equal(theirs(TEXT), tokenizer.encode(tf.constant(TEXT)))
    assert theirs.end_token_id == tokenizer.end_id
    assert theirs.pad_token_id == tokenizer.pad_id != tokenizer.end_id  # else KerasHub would not generate


def test_a_vocabulary_is_learnt_from_own_files(tmp_path):
    (tmp_path / 'a.jsonl').write_text('{"text": "zyzzyva zyzzyva"}\n' * 9)
    (tmp_path / 'b.csv').write_text('text\n' + 'xylophone\n' * 9)
    own = tokenization.BytePairTokenizer.Params().Set(files=str(tmp_path / '*'), vocab_size=300).Instantiate()
    assert [len(own.encode(tf.constant(word))) for word in ('zyzzyva', 'xylophone')] == [1, 1]
    assert len(own.encode(tf.constant('help'))) == 4


@pytest.mark.parametrize('fields, message', [
    ({'dataset': 'pydoc_topics', 'vocab_size': 256}, 'vocab_size=256 is too small'),
    ({}, 'files=None and dataset=None: .* learns from one of them')])
def test_wrong_fields_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        tokenization.BytePairTokenizer.Params().Set(**fields).Instantiate()
