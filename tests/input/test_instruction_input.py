import json

import numpy as np
import pytest

from lingpipe.input import hub_inputs, hub_tokenizer, tokenization
from tests import needs
from tests.input import exact_order, hub_presets

PAIRS = [('ab', 'cde'), ('f', 'g'), ('hi', 'jklmnop'), ('q', 'rs'), ('tu', 'v')]


def write(path, rows):
    path.write_text('\n'.join(json.dumps(row) for row in rows), encoding='utf-8')
    return str(path)


@pytest.fixture(name='pairs')
def pairs_fixture(tmp_path):
    return write(tmp_path / 'pairs.jsonl', [{'prompt': prompt, 'response': response} for prompt, response in PAIRS])


def make_input(files, **fields):
    return hub_inputs.InstructionInput.Params().Set(**{
        'files': files, 'tokenizer': tokenization.ByteTokenizer.Params(), 'sequence_length': 8, 'batch_size': 2,
        'shuffle': False, **fields}).Instantiate()


def test_only_responses_count(pairs):
    mask, tokens, labels, weights, num_bytes = exact_order.all_columns(make_input(pairs).evaluation_dataset())
    np.testing.assert_array_equal(tokens[0], [0, *b'abcde', 0, 0])
    np.testing.assert_array_equal(labels[0], [*b'abcde', 0, 0, 0])
    np.testing.assert_array_equal(mask[0], [1, 1, 1, 1, 1, 1, 1, 0])
    np.testing.assert_array_equal(weights[0], [0, 0, 1, 1, 1, 1, 0, 0])
    np.testing.assert_array_equal(num_bytes[0][2:6], 1)
    assert len(tokens) == 6 and not weights[5].any()  # the last batch is filled up


def test_a_long_response_is_cut_and_said_so(pairs, caplog):
    _, _, labels, weights, _ = exact_order.all_columns(make_input(pairs).evaluation_dataset())
    assert bytes(labels[2].tolist()) == b'hijklmno' and weights[2].tolist() == [0, 0, 1, 1, 1, 1, 1, 1]
    assert 'sequence_length=8 cuts 1 responses, and leaves out 0 prompts' in caplog.text


def test_a_long_text_goes_on_in_further_rows(tmp_path):
    texts = ['abcdefghijklmnopqrst', 'uvw']
    path = write(tmp_path / 'texts.jsonl', [{'body': text} for text in texts])
    _, tokens, labels, weights, _ = exact_order.all_columns(make_input(path, text_field='body').evaluation_dataset())
    counted = [(before, after) for before, after, weight in zip(tokens.ravel(), labels.ravel(), weights.ravel()) if weight]
    assert counted == [pair for text in texts for pair in zip(b'\0' + text.encode(), text.encode() + b'\0')]


def test_the_prompt_is_shown_in_its_template(pairs):
    _, tokens, *_ = exact_order.all_columns(make_input(pairs, prompt_template='>{prompt}:').evaluation_dataset())
    assert bytes(tokens[1].tolist()) == b'\0>f:g\0\0\0'


def test_training_visits_all_rows_resumes_and_is_shared(pairs):
    data = make_input(pairs, shuffle=True, seed=3, sequence_length=12)
    num_rows = data.num_examples
    tokens = exact_order.all_columns(data.training_dataset().take(2 * num_rows))[1]
    epochs = tokens[:4 * num_rows].reshape(4, num_rows, -1).tolist()
    assert all(sorted(epoch) == sorted(epochs[0]) for epoch in epochs) and epochs[0] != epochs[1]
    exact_order.assert_training_is_exact(data, 4 * num_rows, (3, num_rows))


def test_a_prompt_that_leaves_no_room_is_left_out(tmp_path, caplog):
    rows = [{'prompt': 'a', 'response': 'b'}, {'prompt': 'abcdefgh', 'response': 'i'}]
    assert make_input(write(tmp_path / 'a.jsonl', rows)).num_examples == 1
    assert 'cuts 0 responses, and leaves out 1 prompts' in caplog.text
    with pytest.raises(ValueError, match='sequence_length: 8 has no room for any response of .*a.jsonl'):
        make_input(write(tmp_path / 'a.jsonl', rows[1:]))


@needs.keras_hub
def test_a_plain_text_is_what_kerashub_makes_of_it(tmp_path):
    preprocessor = hub_presets.gpt2(tmp_path / 'preset', 8).preprocessor
    texts = ['a b a', 'abcab', 'c']
    path = write(tmp_path / 'texts.jsonl', [{'text': text} for text in texts])
    hub = hub_tokenizer.KerasHubTokenizer.Params().Set(preset=str(tmp_path / 'preset'))
    data = make_input(path, text_field='text', batch_size=3, tokenizer=hub)
    expected, labels, weights = preprocessor(texts)
    exact_order.assert_equal_columns(exact_order.all_columns(data.evaluation_dataset())[:4], [
        expected['padding_mask'], expected['token_ids'], labels, weights])
    assert data.tokenizer.vocab_size == 8 and data.tokenizer.decode([1, 2, 7, 0, 1]) == 'a a!'
