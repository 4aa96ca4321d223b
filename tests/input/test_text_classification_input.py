import csv

import numpy as np
import pytest
import tensorflow as tf

from lingpipe.input import byte_pair_tokenizer, hub_tokenizer, text_classification_input
from tests import needs
from tests.input import exact_order, hub_presets

pytestmark = needs.keras_hub
ROWS = [('a b', 'good', 2), ('c', 'bad', 1), ('b b b', 'good', 0.5), ('a', 'fair', 0), ('c c', 'bad', 3)]


@pytest.fixture(name='preset', scope='module')
def preset_fixture(tmp_path_factory):
    folder = tmp_path_factory.mktemp('presets') / 'bert'
    return str(folder), hub_presets.bert(folder).preprocessor


@pytest.fixture(name='make_input')
def make_input_fixture(preset, tmp_path):
    def make_input(rows=ROWS, **fields):
        path = tmp_path / 'reviews.csv'
        with path.open('w', newline='', encoding='utf-8', errors='surrogateescape') as file:
            csv.writer(file).writerows([('text', 'label', 'w'), *rows])
        return text_classification_input.TextClassificationInput.Params().Set(**{
            'files': str(path), 'tokenizer': hub_tokenizer.KerasHubTokenizer.Params().Set(preset=preset[0]),
            'sequence_length': 8, 'batch_size': 2, 'shuffle': False, 'weight_field': 'w', **fields}).Instantiate()

    return make_input


def columns(batches):
    rows = [(*inputs.values(), *targets) for inputs, *targets in batches]
    return [np.concatenate(column) for column in zip(*rows)]


def test_batches_are_those_of_the_preprocessor(make_input, preset):
    data = make_input(class_names=['bad', 'fair', 'good'])
    inputs, labels, weights = zip(*data.evaluation_dataset())
    expected = preset[1]([text for text, *_ in ROWS])
    assert set(expected) == set(inputs[0])
    for name, part in expected.items():
        np.testing.assert_array_equal(np.concatenate([batch[name] for batch in inputs])[:5], part)
    np.testing.assert_array_equal(np.concatenate(labels)[:5], [2, 0, 2, 1, 0])
    np.testing.assert_array_equal(np.concatenate(weights), [2, 1, 0.5, 0, 3, 0])


def test_classes_are_the_sorted_labels(make_input, tmp_path):
    assert make_input().class_names == ['bad', 'fair', 'good']
    numbers = [('a', label, 1) for label in (10, 9, -1, 10)]
    assert make_input(numbers).class_names == ['-1', '9', '10']
    (tmp_path / 'all.csv').write_text('label\nz\n\ngood\nbad\nfair\n', encoding='utf-8')
    data = make_input(class_files=str(tmp_path / 'all.csv'))
    assert data.class_names == ['bad', 'fair', 'good', 'z'] and data.num_classes == 4
    np.testing.assert_array_equal(columns(data.evaluation_dataset())[-2][:5], [2, 0, 2, 1, 0])


def test_evaluation_does_not_number_classes_by_itself(make_input):
    with pytest.raises(ValueError, match=r"class_names: the classes \['bad', 'fair', 'good'\] were read .* class_files"):
        make_input().evaluation_dataset()


def test_training_visits_all_texts_resumes_and_is_shared(make_input):
    data = make_input(shuffle=True, seed=1)
    order = [row.tobytes() for row in columns(data.training_dataset().take(5))[2]]  # of token_ids
    assert sorted(order[:5]) == sorted(order[5:]) and order[:5] != order[5:]
    exact_order.assert_training_is_exact(data, 20, (3, 5))


def test_byte_pairs_go_through_the_preprocessor_of_roberta(make_input):
    pytest.importorskip('tokenizers')
    tokenizer = byte_pair_tokenizer.BytePairTokenizer.Params().Set(
        keras_hub_class='RobertaTokenizer', split='dev', vocab_size=300)
    data = make_input(tokenizer=tokenizer)
    (inputs, *_), = data.training_dataset().take(1)
    text = data.tokenizer.encode(tf.constant('a b')).numpy().tolist()
    row = [0, *text, 2]
    np.testing.assert_array_equal(inputs['token_ids'][0], row + [1] * (8 - len(row)))
    np.testing.assert_array_equal(inputs['padding_mask'][0], np.arange(8) < len(row))
    assert data.tokenizer.decode(row) == 'a b'
    with pytest.raises(ValueError, match="keras_hub_class='GPT2Tokenizer' has no TextClassifierPreprocessor"):
        make_input(tokenizer=tokenizer.Copy().Set(keras_hub_class='GPT2Tokenizer'))


@pytest.mark.parametrize(('row', 'words'), [
    (('a', 'god', 1), "line 3, field 'label': 'god' is no class; did you mean good"),
    ((' ', 'bad', 1), "line 3, field 'text': ' ' is empty"),
    (('a', '', 1), "line 3, field 'label': '' is no label"),
    (('a', 'bad', -1), "line 3, field 'w': '-1' is no weight"),
    (('a', 'bad'), "line 3, has 2 columns, not the 3"),
    (('a\udcff', 'bad', 1), "line 3, field 'text': the text is not UTF-8 from character 1")])
def test_a_bad_record_is_named_or_left_out(make_input, caplog, row, words):
    rows = [ROWS[0], row, ROWS[1]]
    with pytest.raises(ValueError, match='reviews.csv, ' + words.replace('(', r'\(') + r".*set bad_records='skip'"):
        make_input(rows, class_names=['bad', 'good'])
    data = make_input(rows, class_names=['bad', 'good'], bad_records='skip')
    assert data.evaluation_dataset().cardinality() == 1 and len(data.bad_records) == 1
    assert 'Left out 1 bad records of' in caplog.text and words in caplog.text


@pytest.mark.parametrize(('fields', 'words'), [
    ({'files': None}, 'neither was given'), ({'dataset': 'imdb'}, 'both were given'),
    ({'bad_records': 'ignore'}, "bad_records: 'ignore' is not allowed"),
    ({'class_names': ['a', 'b', 'a']}, 'has a name twice'),
    ({'text_field': 'txt'}, "line 2, field 'txt' is missing; did you mean text"),
    ({'text_field': 'txt', 'bad_records': 'skip'}, 'holds no good record; the first: .*line 2'),
    ({'tokenizer': hub_tokenizer.KerasHubTokenizer.Params()}, 'tokenizer.preset=None: no preset was given'),
    ({'tokenizer': hub_tokenizer.KerasHubTokenizer.Params().Set(preset='./no')}, "tokenizer.preset='./no' is no folder")])
def test_wrong_fields_are_named(make_input, fields, words):
    with pytest.raises(ValueError, match=words):
        make_input(**fields)
