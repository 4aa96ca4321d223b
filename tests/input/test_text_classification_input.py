import csv

import numpy as np
import pytest
import tensorflow as tf

from lingpipe.input import byte_pair_tokenizer, hub_tokenizer, text_classification_input, tokenization
from tests import needs
from tests.input import exact_order

pytestmark = needs.keras_hub
ROWS = [('a b', 'good', 2), ('c', 'bad', 1), ('b b b', 'good', 0.5), ('a', 'fair', 0), ('c c', 'bad', 3)]


@pytest.fixture(name='make_input')
def make_input_fixture(preset, tmp_path):
    def make_input(rows=ROWS, **fields):
        path = tmp_path / 'reviews.csv'
        with path.open('w', newline='', encoding='utf-8', errors='surrogateescape') as file:
            csv.writer(file).writerows([('text', 'label', 'w'), *rows])
        return text_classification_input.TextClassificationInput.Params().Set(**{
            'files': str(path), 'tokenizer': hub_tokenizer.KerasHubTokenizer.Params().Set(preset=preset[0]),
            'sequence_length': 8, 'batch_size': 2, 'shuffle': False, 'weight_field': 'w', 'class_files': str(path),
            **fields}).Instantiate()

    return make_input


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
    assert text_classification_input._in_order(['1', ' 1', '01', '0']) == ['0', ' 1', '01', '1']
    (tmp_path / 'all.csv').write_text('label\nz\n\ngood\nbad\nfair\n', encoding='utf-8')
    data = make_input(class_files=str(tmp_path / 'all.csv'))
    assert data.class_names == ['bad', 'fair', 'good', 'z'] and data.num_classes == 4
    np.testing.assert_array_equal(exact_order.all_columns(data.evaluation_dataset())[-2][:5], [2, 0, 2, 1, 0])


def test_training_visits_all_texts_resumes_and_is_shared(make_input):
    data = make_input(shuffle=True, seed=1)
    order = [row.tobytes() for row in exact_order.all_columns(data.training_dataset().take(5))[2]]  # of token_ids
    assert sorted(order[:5]) == sorted(order[5:]) and order[:5] != order[5:]
    exact_order.assert_training_is_exact(data, 20, (3, 5))


def test_byte_pairs_go_through_the_preprocessor_of_roberta(make_input):
    pytest.importorskip('tokenizers')
    tokenizer = byte_pair_tokenizer.BytePairTokenizer.Params().Set(
        dataset='pydoc_topics', keras_hub_class='RobertaTokenizer', split='dev', vocab_size=300)
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
    (('a', 'god', 1), "line 3, field 'label': 'god' is not a class; did you mean good"),
    ((' ', 'bad', 1), "line 3, field 'text': ' ' is empty"),
    (('a', '', 1), "line 3, field 'label': '' is not a label"),
    (('a', 'bad', -1), "line 3, field 'w': '-1' is not a weight"),
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
    ({'weight_field': 5}, '^weight_field: 5 is not allowed. Set it to the name of a field.$'),
    ({'files': None}, 'neither was given'), ({'dataset': 'imdb'}, 'both were given'),
    ({'class_names': 'bad,good'}, "class_names: 'bad,good' is not a list of"),
    ({'bad_records': 'ignore'}, "bad_records: 'ignore' is not allowed"),
    ({'class_names': ['a', 'b', 'a']}, 'has a name twice'),
    ({'class_files': None}, 'class_names: nothing names the classes. Set class_names, or class_files'),
    ({'text_field': 'txt'}, "line 2, field 'txt' is missing; did you mean text"),
    ({'text_field': 'txt', 'bad_records': 'skip'}, 'holds no good record; the first: .*line 2'),
    ({'tokenizer': tokenization.ByteTokenizer.Params()}, 'tokenizer: ByteTokenizer belongs to no encoder of KerasHub'),
    ({'tokenizer': hub_tokenizer.KerasHubTokenizer.Params()}, 'tokenizer.preset=None: no preset was given'),
    ({'tokenizer': hub_tokenizer.KerasHubTokenizer.Params().Set(preset='./no')}, "tokenizer.preset='./no' is not an existing folder")])
def test_wrong_fields_are_named(make_input, fields, words):
    with pytest.raises(ValueError, match=words):
        make_input(**fields)


def test_texts_of_files_are_batched_without_labels(make_input, preset, tmp_path):
    params = make_input().params
    assert params.cls.ClassNames(params) == ['bad', 'fair', 'good']
    (tmp_path / 'new.jsonl').write_text('{"text": "a b"}\n{"words": "c"}\n{"text": "b b b"}\n', encoding='utf-8')
    count, batches = params.cls.FileBatches(params, str(tmp_path / 'new.jsonl'))
    inputs, names, problems = zip(*batches)
    expected = preset[1](['a b', '', 'b b b'])
    for name, part in expected.items():
        np.testing.assert_array_equal(np.concatenate([batch[name] for batch in inputs]), part)
    assert count == 3 and names[0][1].numpy().decode() == f'{tmp_path}/new.jsonl, line 2'
    assert [bool(problem) for problem in np.concatenate(problems)] == [False, True, False]


def test_a_file_without_records_is_named(make_input, tmp_path):
    (tmp_path / 'empty.jsonl').write_text('')
    params = make_input().params
    with pytest.raises(ValueError, match='empty.jsonl.* holds no record'):
        params.cls.FileBatches(params, str(tmp_path / 'empty.jsonl'))
