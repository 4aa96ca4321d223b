import json

import numpy as np
import pytest

from lingpipe.input import batch_share, byte_pair_tokenizer, hub_tokenizer, masked_lm_input, tokenization
from tests import needs
from tests.input import exact_order

pytestmark = needs.keras_hub
TEXTS = ['a b c a b', 'c', 'b b c a a c b a b c a', 'a c']
PAD, START, END, UNKNOWN, MASK = range(5)


@pytest.fixture(name='make_input')
def make_input_fixture(preset, tmp_path):
    def make_input(texts=TEXTS, **fields):
        path = tmp_path / 'texts.jsonl'
        path.write_text('\n'.join(json.dumps({'text': text, 'w': number + 1}) for number, text in enumerate(texts)))
        return masked_lm_input.MaskedLMInput.Params().Set(**{
            'files': str(path), 'tokenizer': hub_tokenizer.KerasHubTokenizer.Params().Set(preset=preset[0]),
            'sequence_length': 8, 'batch_size': 2, 'shuffle': False, **fields}).Instantiate()

    return make_input


def restored(tokens, positions, labels, weights):
    """Put what is to be guessed back to where it stood."""
    tokens = tokens.copy()
    for row, place, label, weight in zip(tokens, positions, labels, weights):
        row[place[weight > 0]] = label[weight > 0]
    return tokens


def test_rows_are_those_of_kerashub_but_for_their_masks(make_input, preset):
    data = make_input(weight_field='w', mask_rate=0.5)
    positions, mask, _, tokens, labels, weights = exact_order.all_columns(data.evaluation_dataset())
    texts = ['a b c a b', 'c', 'b b c a a c', 'b a b c a', 'a c']  # a long one goes on in the next row
    expected = preset[1](texts)
    np.testing.assert_array_equal(restored(tokens, positions, labels, weights)[:5], expected['token_ids'])
    np.testing.assert_array_equal(mask[:5], expected['padding_mask'])
    np.testing.assert_array_equal(weights, [[1, 1, 1], [2, 0, 0], [3, 3, 3], [3, 3, 3], [4, 0, 0], [0, 0, 0]])
    assert not np.isin(labels[weights > 0], [PAD, START, END]).any()
    assert all(len(set(row[weight > 0])) == np.count_nonzero(weight) for row, weight in zip(positions, weights))


def test_masks_have_the_shares_of_bert(make_input):
    """Bounds are at four standard deviations, of 6,000 draws."""
    data = make_input(['a b c ' * 2000], sequence_length=602, mask_rate=0.5, batch_size=10)
    positions, _, _, tokens, labels, weights = exact_order.all_columns(data.training_dataset().take(2))
    assert weights.all() and weights.shape == (20, 300)
    found = np.take_along_axis(tokens, positions, 1)
    assert np.mean(found == MASK) == pytest.approx(0.8 + 0.1 / 8, abs=0.021)
    assert np.mean(found == labels) == pytest.approx(0.1 + 0.1 / 8, abs=0.017)
    assert np.mean(np.isin(found, [PAD, START, END, UNKNOWN])) == pytest.approx(0.1 * 4 / 8, abs=0.012)
    assert np.mean(positions < 301) == pytest.approx(0.5, abs=0.027)


def test_masks_change_by_visit_and_not_by_run(make_input):
    data = make_input(shuffle=True, seed=2, batch_size=4)
    whole, share = data.training_dataset(), make_input(shuffle=True, seed=2, batch_size=4).training_dataset(
        4, batch_share.Share(1, 2))
    assert whole.element_spec == (data.input_spec, *data.TargetSpec(data.params))
    whole, share = exact_order.all_columns(whole.take(5)), exact_order.all_columns(share.take(4))
    for part, other in zip(whole, share):  # another run, which resumes after a batch and reads two rows of four
        np.testing.assert_array_equal(part[4:].reshape(4, 4, -1)[:, 2:], other.reshape(4, 2, -1))
    originals = [row.tobytes() for row in restored(whole[3], whole[0], *whole[4:])]
    visits = [places for places, original in zip(whole[0].tolist(), originals) if original == originals[0]]
    assert len(visits) == 4 and len(set(map(str, visits))) > 1


def test_byte_pairs_have_the_mask_of_roberta(make_input):
    pytest.importorskip('tokenizers')
    tokenizer = byte_pair_tokenizer.BytePairTokenizer.Params().Set(
        dataset='pydoc_topics', keras_hub_class='RobertaTokenizer', split='dev', vocab_size=300)
    (inputs, labels, weights), = make_input(tokenizer=tokenizer, mask_rate=1.0).evaluation_dataset().take(1)
    assert set(inputs) == {'token_ids', 'padding_mask', 'mask_positions'}
    assert np.count_nonzero(inputs['token_ids'] == 3) > np.count_nonzero(weights) / 2
    assert tokenizer.Instantiate().decode(labels[0].numpy()) == 'a b c a b'


@pytest.mark.parametrize(('fields', 'words'), [
    ({'mask_rate': 0.0}, 'mask_rate: 0.0 is not allowed. Set it to a number above 0'),
    ({'sequence_length': 2}, 'sequence_length: 2 has no room for a token'),
    ({'tokenizer': tokenization.ByteTokenizer.Params()}, 'tokenizer: ByteTokenizer belongs to no encoder of KerasHub'),
    ({'text_field': 'txt'}, "line 1, field 'txt' is missing; did you mean text")])
def test_wrong_fields_are_named(make_input, fields, words):
    with pytest.raises(ValueError, match=words):
        make_input(**fields)
