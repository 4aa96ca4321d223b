import csv

import numpy as np
import pytest
import tensorflow as tf

from lingpipe.input import hub_inputs, hub_tokenizer, tokenization
from tests import needs
from tests.input import exact_order, hub_presets

pytestmark = needs.keras_hub
ROWS = [('a b', 'good'), ('c', 'bad'), ('b b b', 'good'), ('a', 'fair'), ('c c', 'bad')]


@pytest.fixture(name='preset', scope='module')
def preset_fixture(tmp_path_factory):
    """The folder of a tiny BERT of KerasHub, and its preprocessor."""
    folder = tmp_path_factory.mktemp('presets') / 'bert'
    return str(folder), hub_presets.bert(folder).preprocessor


@pytest.fixture(name='make_input')
def make_input_fixture(preset, tmp_path):
    def make_input(rows=ROWS, **fields):
        path = tmp_path / 'reviews.csv'
        with path.open('w', newline='', encoding='utf-8') as file:
            csv.writer(file).writerows([('text', 'label'), *rows])
        return hub_inputs.TextClassificationInput.Params().Set(**{
            'files': str(path), 'tokenizer': hub_tokenizer.KerasHubTokenizer.Params().Set(preset=preset[0]),
            'sequence_length': 8, 'batch_size': 2, 'shuffle': False, 'class_names': ['bad', 'fair', 'good'],
            **fields}).Instantiate()

    return make_input


def test_batches_are_those_of_the_preprocessor(make_input, preset):
    data = make_input()
    inputs, labels, weights = zip(*data.evaluation_dataset())
    expected = preset[1]([text for text, _ in ROWS])
    assert set(expected) == set(inputs[0])
    for name, part in expected.items():
        np.testing.assert_array_equal(np.concatenate([batch[name] for batch in inputs])[:5], part)
    np.testing.assert_array_equal(np.concatenate(labels)[:5], [2, 0, 2, 1, 0])
    np.testing.assert_array_equal(np.concatenate(weights), [1, 1, 1, 1, 1, 0])


def test_training_visits_all_texts_resumes_and_is_shared(make_input):
    data = make_input(shuffle=True, seed=1)
    order = [row.tobytes() for row in exact_order.all_columns(data.training_dataset().take(5))[2]]  # of token_ids
    assert sorted(order[:5]) == sorted(order[5:]) and order[:5] != order[5:]
    exact_order.assert_training_is_exact(data, 20, (3, 5))


def test_byte_pairs_go_through_the_preprocessor_of_roberta(make_input):
    pytest.importorskip('tokenizers')
    tokenizer = tokenization.BytePairTokenizer.Params().Set(
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
    (('a', 'god'), "line 3, field 'label': 'god' is not a class; did you mean good"),
    ((' ', 'bad'), "line 3, field 'text': ' ' is not a text, or an empty one"),
    (('a', ''), "line 3, field 'label': '' is not a label"),
    (('a', 'bad', 'c'), 'line 3, has more or fewer columns')])
def test_a_bad_record_is_named(make_input, row, words):
    with pytest.raises(ValueError, match=f'reviews.csv, {words}.* Repair the record'):
        make_input([ROWS[0], row, ROWS[1]])


@pytest.mark.parametrize(('fields', 'words'), [
    ({'files': None}, 'neither was given'), ({'dataset': 'imdb'}, 'both were given'),
    ({'class_names': 'bad,good'}, "class_names: 'bad,good' is not a list of different names"),
    ({'class_names': ['a', 'b', 'a']}, 'is not a list of different names'),
    ({'class_names': None}, 'class_names: None is not a list of different names'),
    ({'text_field': 'txt'}, "line 2, field 'txt' is missing; did you mean text"),
    ({'tokenizer': tokenization.ByteTokenizer.Params()}, 'tokenizer: ByteTokenizer belongs to no encoder of KerasHub'),
    ({'tokenizer': hub_tokenizer.KerasHubTokenizer.Params()}, 'tokenizer.preset=None: no preset was given')])
def test_wrong_fields_are_named(make_input, fields, words):
    with pytest.raises(ValueError, match=words):
        make_input(**fields)


def test_texts_of_files_are_batched_without_labels(make_input, preset, tmp_path):
    params = make_input().params
    (tmp_path / 'new.jsonl').write_text('{"text": "a b"}\n{"text": "c"}\n{"text": "b b b"}\n', encoding='utf-8')
    count, batches = params.cls.FileBatches(params, str(tmp_path / 'new.jsonl'))
    inputs, names, problems = zip(*batches)
    for name, part in preset[1](['a b', 'c', 'b b b']).items():
        np.testing.assert_array_equal(np.concatenate([batch[name] for batch in inputs]), part)
    assert count == 3 and names[0][1].numpy().decode() == f'{tmp_path}/new.jsonl, line 2'
    assert not any(np.concatenate(problems))


def test_a_file_without_records_is_named(make_input, tmp_path):
    (tmp_path / 'empty.jsonl').write_text('')
    params = make_input().params
    for use in (lambda: make_input(files=str(tmp_path / 'empty.jsonl')),
                lambda: params.cls.FileBatches(params, str(tmp_path / 'empty.jsonl'))):
        with pytest.raises(ValueError, match='empty.jsonl.* holds no record'):
            use()
