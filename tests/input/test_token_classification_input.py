import json

import numpy as np
import pytest
import tensorflow as tf

from lingpipe.input import byte_pair_tokenizer, hub_tokenizer, token_classification_input, tokenization
from tests import needs
from tests.input import exact_order, hub_presets

pytestmark = needs.keras_hub
ROWS = [(['a', 'b', 'c'], ['x', 'y', 'x'], 2), ('c b', 'y y', 1), (['a', 'c', 'b', 'b', 'a', 'c', 'b', 'c'], [*'xyxyxyxz'], 1),
        (['b'], ['z'], 0)]


@pytest.fixture(name='preset', scope='module')
def preset_fixture(tmp_path_factory):
    folder = tmp_path_factory.mktemp('presets') / 'bert'
    return str(folder), hub_presets.bert(folder).preprocessor


@pytest.fixture(name='make_input')
def make_input_fixture(preset, tmp_path):
    def make_input(rows=ROWS, **fields):
        path = tmp_path / 'tokens.jsonl'
        path.write_text('\n'.join(json.dumps({'tokens': tokens, 'labels': labels, 'w': weight})
                                  for tokens, labels, weight in rows))
        return token_classification_input.TokenClassificationInput.Params().Set(**{
            'files': str(path), 'tokenizer': hub_tokenizer.KerasHubTokenizer.Params().Set(preset=preset[0]),
            'sequence_length': 8, 'batch_size': 2, 'shuffle': False, 'weight_field': 'w', 'class_names': [*'xyz'],
            **fields}).Instantiate()

    return make_input


def columns(batches):
    rows = [(inputs['token_ids'], inputs['padding_mask'], *targets) for inputs, *targets in batches]
    return [np.concatenate(column) for column in zip(*rows)]


def test_rows_are_those_of_kerashub_with_a_label_a_token(make_input, preset):
    batches = make_input().evaluation_dataset()
    tokens, mask, labels, weights = columns(batches)
    expected = preset[1](['a b c', 'c b', 'a c b b a c', 'b c', 'b'])  # a long one goes on in the next row
    np.testing.assert_array_equal(tokens[:5], expected['token_ids'])
    np.testing.assert_array_equal(mask[:5], expected['padding_mask'])
    assert {name: np.max(part) for name, part in next(iter(batches))[0].items()}['segment_ids'] == 0
    np.testing.assert_array_equal(labels[:3], [[0, 0, 1, 0, 0, 0, 0, 0], [0, 1, 1, 0, 0, 0, 0, 0], [0, 0, 1, 0, 1, 0, 1, 0]])
    np.testing.assert_array_equal(weights, [
        [0, 2, 2, 2, 0, 0, 0, 0], [0, 1, 1, 0, 0, 0, 0, 0], [0, 1, 1, 1, 1, 1, 1, 0], [0, 1, 1, 0, 0, 0, 0, 0],
        [0] * 8, [0] * 8])


def test_the_first_part_of_a_token_has_its_label(make_input):
    pytest.importorskip('tokenizers')
    tokenizer = byte_pair_tokenizer.BytePairTokenizer.Params().Set(
        keras_hub_class='RobertaTokenizer', split='dev', vocab_size=300)
    words = ['x', 'qqq', 'qqqqqqqqqqqqqq', 'y', 'z']
    data = make_input([(words, [*'xyzxy'], 1)], tokenizer=tokenizer, sequence_length=10)
    parts = [data.tokenizer.encode(tf.constant(text)).numpy() for text in ('x', ' qqq', ' qqqqqqqqqqqqqq', ' y', ' z')]
    assert len(parts[1]) > 1 and len(parts[2]) > 8
    tokens, _, labels, weights = columns(data.evaluation_dataset())
    rows = [parts[0], parts[1]], [parts[2][:8]], [parts[3], parts[4]]
    for row, own, weight in zip(rows, tokens, weights):
        filled = [0, *np.concatenate(row), 2]
        np.testing.assert_array_equal(own, filled + [1] * (10 - len(filled)))
        starts = 1 + np.cumsum([0, *map(len, row[:-1])])
        np.testing.assert_array_equal(np.flatnonzero(weight), starts)
    assert labels[:3][weights[:3] > 0].tolist() == [0, 1, 2, 0, 1]
    hub = data.tokenizer.keras_hub_tokenizer()
    np.testing.assert_array_equal(np.concatenate(parts), hub(' '.join(words)))


def test_training_resumes_and_classes_may_be_those_of_the_records(make_input):
    data = make_input(class_names=None, shuffle=True, seed=1)
    assert data.class_names == ['x', 'y', 'z'] and data.num_classes == 3
    exact_order.assert_training_is_exact(data, 20, (5, 3))
    with pytest.raises(ValueError, match=r"class_names: the classes \['x', 'y', 'z'\] were read from the records"):
        data.evaluation_dataset()


def test_classes_of_a_dataset_of_tfds_are_its_own(make_input):
    data = make_input(files=None, dataset='python_tokens', split='dev[:9]', weight_field=None, class_names=None)
    assert data.class_names[:3] == ['argument', 'attribute', 'call'] and data.num_classes == 9
    _, _, labels, weights = columns(data.evaluation_dataset())
    assert labels.max() < 9 and weights.any()


@pytest.mark.parametrize(('row', 'words'), [
    ((['a', 'b'], ['x'], 1), "field 'labels': 1 labels for 2 tokens."),
    ((['a'], ['w'], 1), "field 'labels': 'w' is no class; there are: x, y, z."),
    ((['a'], [0.5], 1), "field 'labels': 0.5 is no label, which is a text or an integer."),
    (([], [], 1), r"field 'tokens': \[\] is no list of texts, or an empty one."),
    ((7, ['x'], 1), "field 'tokens': 7 is no list of texts, or an empty one."),
    ((['a', ' '], ['x', 'x'], 1), "field 'tokens': ' ' is no text, or an empty one."),
    ((['a', '\u200b'], ['x', 'x'], 1), r"field 'tokens': the tokenizer makes nothing of '\\u200b'.")])
def test_a_bad_record_is_named_or_left_out(make_input, row, words):
    with pytest.raises(ValueError, match=f"tokens.jsonl, line 2, {words} Repair the record, or set bad_records='skip'"):
        make_input([ROWS[0], row])
    data = make_input([ROWS[0], row], bad_records='skip')
    assert data.num_examples == 1 and len(data.bad_records) == 1


def test_a_tokenizer_of_no_encoder_is_refused(make_input):
    with pytest.raises(ValueError, match='tokenizer: ByteTokenizer belongs to no encoder of KerasHub. Set it to the'):
        make_input(tokenizer=tokenization.ByteTokenizer.Params())
