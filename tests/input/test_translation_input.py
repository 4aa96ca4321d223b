
import numpy as np
import pytest
import tensorflow_datasets as tfds

from lingpipe.input import offline_texts_dataset, text_input, translation_input
from tests.input import exact_order, published, small_datasets

NUM_PAIRS = 100


class Doubles(small_datasets.SmallDataset):
    """Numbers and twice as many letters; every tenth pair is too long for the tests' lengths, one has an empty side."""

    features, supervised_keys = tfds.features.Translation(languages=('number', 'letters')), ('number', 'letters')

    def examples(self, split):
        for i in range(NUM_PAIRS):
            letters = '' if i == 1 else 'ab' * (20 if i % 10 == 0 else i % 3 + 1)
            yield {'number': f'{i:03d}', 'letters': letters}


@pytest.fixture(scope='module')
def data_dir(tmp_path_factory):
    return small_datasets.prepare('doubles', tmp_path_factory.mktemp('data'), num_shards=2)


def make_input(data_dir, **fields):
    params = translation_input.TranslationInput.Params().Set(
        data_dir=data_dir, dataset='doubles', batch_size=4, source_length=5, target_length=8)
    return params.Set(**fields).Instantiate()


def sources(dataset, count):
    batches = [batch for batch, _ in zip(dataset, range(-(-count // 4)))]
    return [bytes(row[row > 0].tolist()).decode() for inputs, *_ in batches
            for row in inputs['source'].numpy().astype(np.uint8)][:count]


@pytest.mark.parametrize('limit', [text_input.MEMORY_LIMIT_BYTES, 0])
def test_training_resumes_with_another_order_in_every_epoch(data_dir, limit, monkeypatch):
    def pairs():
        return make_input(data_dir, shuffle_buffer_size=30)

    monkeypatch.setattr(text_input, 'MEMORY_LIMIT_BYTES', limit)
    fitting = [f'{i:03d}' for i in range(NUM_PAIRS) if i % 10 and i != 1]
    whole = sources(pairs().training_dataset(), 3 * len(fitting))
    epochs = [whole[start:start + len(fitting)] for start in range(0, len(whole), len(fitting))]
    assert [sorted(epoch) for epoch in epochs] == [fitting] * 3
    assert len(set(map(tuple, epochs))) == 3
    exact_order.assert_training_is_exact(pairs(), 260, (5, 0, len(fitting) + 1, 200))


def test_a_target_is_shifted_ended_and_filled_up(data_dir):
    inputs, labels, weights = next(iter(make_input(data_dir, shuffle=False).training_dataset()))
    a, b = b'ab'
    rows = {bytes(source[source > 0].tolist()).decode(): rest for source, *rest in zip(
        inputs['source'].numpy().astype(np.uint8), inputs['target'].numpy(), labels.numpy(), weights.numpy())}
    number, (target, label, weight) = next(iter(rows.items()))
    length = 2 * (int(number) % 3 + 1)
    letters = [a, b] * (length // 2)
    assert label.tolist() == letters + [0] * (8 - length)
    assert target.tolist() == [0] + letters + [0] * (7 - length)
    assert weight.tolist() == [1] * (length + 1) + [0] * (7 - length)


def test_an_evaluation_leaves_nothing_out_and_fills_up_with_weight_zero(data_dir):
    batches = list(make_input(data_dir, batch_size=32).evaluation_dataset())
    assert [batch[1].shape for batch in batches] == [(32, 8)] * 4
    weights = np.concatenate([batch[2] for batch in batches])
    sums = weights.sum(1)
    assert (sums[:NUM_PAIRS] > 0).all() and not sums[NUM_PAIRS:].any()
    assert sorted(set(sums[:NUM_PAIRS])) == [1, 3, 5, 7, 8]  # an empty target is its end; one that is cut has none


def test_any_translation_dataset_of_tfds_can_be_read(tmp_path, monkeypatch):
    monkeypatch.setattr(text_input, 'MEMORY_LIMIT_BYTES', 0)
    published.write_metadata('wmt14_translate/de-en', tmp_path, num_examples=20)
    with tfds.testing.mock_data(num_examples=20, data_dir=str(tmp_path)):
        pairs = make_input(None, dataset='wmt14_translate/de-en', source_length=40, target_length=40)
        assert len(list(pairs.evaluation_dataset())) == 5
        inputs, *_ = next(iter(pairs.training_dataset()))
    assert inputs['source'].shape == inputs['target'].shape == (4, 40)


@pytest.mark.parametrize(('chosen', 'languages'), [
    ({}, ('number', 'letters')), ({'source_language': 'letters'}, ('letters', 'number')),
    ({'target_language': 'number'}, ('letters', 'number'))])
def test_languages_are_chosen_or_those_of_the_dataset_in_its_order(data_dir, chosen, languages):
    assert translation_input.chosen_languages('doubles', data_dir, **chosen) == languages


@pytest.mark.parametrize(('fields', 'words'), [
    ({'target_length': 1}, ['target_length', '1', 'at least 2']),
    ({'dataset': 'mnist'}, ['mnist', 'image, label', 'Translation']),
    ({'source_language': 'fr'}, ['source_language', "'fr'", "['number', 'letters']"]),
    ({'source_language': 'number', 'target_language': 'number'}, ["'number' and 'number' are not two of"]),
])
def test_wrong_fields_are_named_with_what_is_allowed(data_dir, fields, words):
    with pytest.raises(ValueError) as error:
        make_input(data_dir, **fields)
    assert all(word in str(error.value) for word in words), error.value


def test_lengths_that_fit_no_pair_and_a_negative_position_are_refused(data_dir):
    with pytest.raises(ValueError, match='source_length: 2 and target_length: 8 are too short for every pair'):
        make_input(data_dir, source_length=2).training_dataset()
    with pytest.raises(ValueError, match='position: -1 is negative'):
        make_input(data_dir).training_dataset(-1)


@pytest.mark.parametrize(('number', 'words'), [
    (0, 'zero'), (13, 'thirteen'), (40, 'forty'), (99, 'ninety-nine'), (100, 'one hundred'),
    (215, 'two hundred and fifteen'), (1000, 'one thousand'), (7012, 'seven thousand and twelve'),
    (407_012, 'four hundred and seven thousand and twelve'),
    (999_100, 'nine hundred and ninety-nine thousand one hundred')])
def test_numbers_are_spoken(number, words):
    assert offline_texts_dataset.spoken(number) == words
