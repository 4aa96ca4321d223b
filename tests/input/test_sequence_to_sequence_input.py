import json

import numpy as np
import pytest

from lingpipe.input import hub_inputs, hub_tokenizer, tokenization
from tests import needs
from tests.input import exact_order, hub_presets

pytestmark = needs.keras_hub
PAIRS = [('abc', 'cb'), ('a a', 'd'), ('abcdabcd', 'abcda'), ('d', 'abcd'), ('bb', 'abc')]


@pytest.fixture(name='preset', scope='module')
def preset_fixture(tmp_path_factory):
    folder = tmp_path_factory.mktemp('presets') / 'bart'
    return str(folder), hub_presets.bart(folder).preprocessor


@pytest.fixture(name='make_input')
def make_input_fixture(preset, tmp_path):
    def make_input(pairs=PAIRS, **fields):
        path = tmp_path / 'pairs.jsonl'
        path.write_text('\n'.join(json.dumps({'source': source, 'target': target}) for source, target in pairs))
        return hub_inputs.SequenceToSequenceInput.Params().Set(**{
            'files': str(path), 'tokenizer': hub_tokenizer.KerasHubTokenizer.Params().Set(preset=preset[0]),
            'sequence_length': 8, 'target_length': 6, 'batch_size': 2, 'shuffle': False, **fields}).Instantiate()

    return make_input


def test_rows_are_those_of_the_preprocessor_of_kerashub(make_input, preset, caplog):
    *inputs, labels, weights, num_bytes = exact_order.all_columns(make_input().evaluation_dataset())
    sources, targets = zip(*PAIRS)
    expected, expected_labels, mask = preset[1]({'encoder_text': list(sources), 'decoder_text': list(targets)})
    for name, part in zip(sorted(expected), inputs):
        np.testing.assert_array_equal(part[:5], expected[name], err_msg=name)
    np.testing.assert_array_equal(labels[:5], expected_labels)
    np.testing.assert_array_equal(weights[:5], mask)
    assert not weights[5:].any()
    np.testing.assert_array_equal(num_bytes[:2], [[0, 1, 1, 1, 0, 0], [0, 1, 1, 0, 0, 0]])
    assert '1 sources of' in caplog.text and '2 targets of' in caplog.text and 'fill all 8 tokens' in caplog.text


def test_training_visits_all_pairs_and_resumes(make_input):
    data = make_input(shuffle=True, seed=1, target_length=None)
    order = [row.tobytes() for row in exact_order.all_columns(data.training_dataset().take(5))[3]]
    assert sorted(order[:5]) == sorted(order[5:]) and order[:5] != order[5:]
    exact_order.assert_training_is_exact(data, 20, (5, 3))


def test_translations_of_tfds_are_pairs_and_byte_pairs_those_of_bart(make_input):
    pytest.importorskip('tokenizers')
    tokenizer = tokenization.BytePairTokenizer.Params().Set(
        dataset='pydoc_topics', keras_hub_class='BartTokenizer', split='dev', vocab_size=300)
    data = make_input(files=None, dataset='spoken_numbers', split='test[:4]', source_field='words',
                      target_field='digits', tokenizer=tokenizer, sequence_length=64, target_length=9)
    (inputs, labels, weights, num_bytes), = data.evaluation_dataset().take(1)
    digits = data.tokenizer.decode(labels[0].numpy())
    assert digits.isdigit() and int(np.sum(num_bytes[0])) == len(digits) + 1
    assert np.count_nonzero(weights[0]) == len(digits) + 2
    assert data.tokenizer.decode(inputs['encoder_token_ids'][0].numpy()).endswith(('thousand', 'y', 'n', 'ne', 'e', 'o'))


@pytest.mark.parametrize(('fields', 'words'), [
    ({'target_length': 0}, 'target_length: 0 is not allowed'),
    ({'target_field': 'traget'}, "line 1, field 'traget' is missing; did you mean target"),
    ({'tokenizer': tokenization.ByteTokenizer.Params()}, 'tokenizer: ByteTokenizer belongs to no sequence-to-sequence'),
    ({'tokenizer': tokenization.BytePairTokenizer.Params().Set(
        dataset='pydoc_topics')}, "'GPT2Tokenizer' has no Seq2SeqLMPreprocessor in KerasHub. Set it to 'BartTokenizer'")])
def test_wrong_fields_are_named(make_input, fields, words):
    with pytest.raises(ValueError, match=words):
        make_input(**fields)
