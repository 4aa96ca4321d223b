import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from lingpipe.input import text_input, tokenization
from tests.input import exact_order, published, small_datasets


class Sentences(small_datasets.SmallDataset):
    """200 sentences, each of its own length."""

    features = tfds.features.FeaturesDict({'title': tfds.features.Text(), 'text': tfds.features.Text()})

    def examples(self, split):
        return [{'title': str(i), 'text': f'{i} ' + 'ab' * (i % 17)} for i in range(200)]


@pytest.fixture(scope='module')
def data_dir(tmp_path_factory):
    return small_datasets.prepare('sentences', tmp_path_factory.mktemp('data'), num_shards=3)


def make_input(data_dir, **fields):
    params = text_input.TextInput.Params().Set(
        data_dir=data_dir, dataset='sentences', batch_size=4, sequence_length=16)
    return params.Set(**fields).Instantiate()


def sequences(dataset, count):
    """The first `count` sequences as arrays of inputs and labels `[count, length]`."""
    return exact_order.columns(dataset, count)[:2]


def documents(tokens):
    return bytes(tokens.astype(np.uint8).tolist()).decode().split('\0')


@pytest.fixture(name='read_from_files')
def read_from_files_fixture(monkeypatch):
    monkeypatch.setattr(text_input, 'MEMORY_LIMIT_BYTES', 0)


@pytest.fixture(name='any_place', params=['memory', 'files'])
def any_place_fixture(request):
    if request.param == 'files':
        request.getfixturevalue('read_from_files')


def test_training_resumes_where_it_stopped_and_is_shared(data_dir, any_place):
    data = make_input(data_dir, shuffle_buffer_size=20)
    exact_order.assert_training_is_exact(data, 400, (12, 0, 391))  # more than two epochs


def test_every_label_is_the_input_of_the_next_position(data_dir, any_place):
    inputs, labels = sequences(make_input(data_dir).training_dataset(), 40)
    np.testing.assert_array_equal(inputs[:, 1:], labels[:, :-1])
    assert inputs.shape == (40, 16)
    batch = next(iter(make_input(data_dir).training_dataset()))
    assert tf.reduce_min(batch[2]) == tf.reduce_min(batch[3]) == 1


def test_an_epoch_in_memory_shows_each_token_once_at_a_new_place(data_dir):
    """Only the tokens that fill no whole sequence are left out."""
    text = make_input(data_dir)
    count = len(text.tokens) // 16
    epochs = np.split(sequences(text.training_dataset(), 3 * count)[1], 3)
    for epoch in epochs:
        missing = np.bincount(text.tokens, minlength=256) - np.bincount(epoch.ravel(), minlength=256)
        assert missing.min() >= 0 and missing.sum() == len(text.tokens) - 16 * count
    assert not np.array_equal(epochs[0], epochs[1])
    other = sequences(make_input(data_dir, seed=1).training_dataset(), count)[1]
    assert not np.array_equal(epochs[0], other)


@pytest.mark.parametrize(('place', 'first'), [('memory', 1), ('files', 0)])
def test_unshuffled_text_in_memory_and_from_files_is_the_same(data_dir, place, first, request):
    if place == 'files':
        request.getfixturevalue('read_from_files')
    text = make_input(data_dir, shuffle=False)
    count = len(text.tokens) // 16
    found = sequences(text.training_dataset(), count)[1]
    np.testing.assert_array_equal(found.ravel(), text.tokens[first:16 * count + first])


def test_documents_from_files_come_whole_in_another_order_in_every_epoch(data_dir, read_from_files):
    text = make_input(data_dir, shuffle_buffer_size=50)
    tokens = text.tokens
    _, labels = sequences(text.training_dataset(), 2 * len(tokens) // 16)
    epochs = [documents(part) for part in np.split(labels.ravel()[:len(tokens) * 2 // 16 * 16], [len(tokens)])]
    assert sorted(epochs[0]) == sorted(documents(tokens))
    assert epochs[0] != documents(tokens) and epochs[0][:20] != epochs[1][:20]


@pytest.mark.parametrize('context', [0, 5, 15])
def test_evaluation_predicts_every_token_once(data_dir, context):
    text = make_input(data_dir, evaluation_context=context)
    inputs, labels, weights, _ = (np.concatenate(parts) for parts in zip(*text.evaluation_dataset()))
    np.testing.assert_array_equal(labels[weights > 0], text.tokens)
    np.testing.assert_array_equal(inputs[0], [0, *text.tokens[:15]])
    seen_before = (np.arange(16) * np.ones_like(weights))[weights > 0]
    assert seen_before[16:].min() == context


@pytest.mark.parametrize(('length', 'context'), [(1, 0), (3, 1), (16, 0), (17, 3), (4, 2)])
def test_a_text_of_any_length_is_cut_for_evaluation(length, context):
    tokens = np.arange(1, 17)
    rows, weights = text_input.evaluation_sequences(tokens, length, context, 0)
    np.testing.assert_array_equal(rows[:, 1:][weights > 0], tokens)
    np.testing.assert_array_equal(rows[:, :-1][weights > 0], tokens - 1)


def test_any_text_dataset_of_tfds_can_be_read(tmp_path, read_from_files):
    published.write_metadata('lm1b', tmp_path, num_examples=30)
    with tfds.testing.mock_data(num_examples=30, data_dir=str(tmp_path)):
        text = text_input.TextInput.Params().Set(dataset='lm1b', batch_size=4, sequence_length=16).Instantiate()
        inputs, labels = sequences(text.training_dataset(), 8)
        assert sum(batch[2].numpy().sum() for batch in text.evaluation_dataset()) == len(text.tokens)
        resumed = sequences(text.training_dataset(position=4), 4)
    np.testing.assert_array_equal(resumed, [inputs[4:], labels[4:]])


def test_a_text_feature_is_chosen(data_dir):
    titles = documents(make_input(data_dir, text_feature='title').tokens)[:-1]
    assert sorted(map(int, titles)) == list(range(200))
    with pytest.raises(ValueError,
                       match="text_feature: 'texts' is not a tfds.features.Text of .*; there are: text, title. Set"):
        make_input(data_dir, text_feature='texts')


def test_bytes_go_there_and_back():
    tokenizer = tokenization.ByteTokenizer.Params().Instantiate()
    tokens = tokenizer.encode(tf.constant('Größe λ'))
    np.testing.assert_array_equal(tokens, list('Größe λ'.encode()))
    assert tokenizer.decode([*tokens.numpy(), 0]) == 'Größe λ'
    assert tokenizer.decode([0xc3]) == '\ufffd'
    np.testing.assert_array_equal(tokenizer.num_bytes(tokens), np.ones(10))


def test_pydoc_topics_splits_share_no_paragraph(tmp_path):
    splits = {
        split: make_input(str(tmp_path), dataset='pydoc_topics', split=split) for split in ('train', 'dev', 'test')}
    texts = [documents(text.tokens)[:-1] for text in splits.values()]
    train, dev, test = (
        {' '.join(paragraph.split()) for text in part for paragraph in text.split('\n\n')} for part in texts)
    assert not train & dev and not train & test and not dev & test
    train_size, dev_size, test_size = (sum(map(len, part)) for part in texts)
    assert train_size > 300_000 and dev_size > 10_000 and test_size > 10_000


@pytest.mark.parametrize(('fields', 'words'), [
    ({'sequence_length': 2.5}, ['sequence_length', '2.5', 'integer']),
    ({'evaluation_context': 16}, ['evaluation_context', '16', 'nothing to predict']),
    ({'dataset': 'mnist'}, ['mnist', 'image, label', 'Text']),
])
def test_wrong_fields_are_named_with_what_is_allowed(data_dir, fields, words):
    with pytest.raises(ValueError) as error:
        make_input(data_dir, **fields)
    assert all(word in str(error.value) for word in words), error.value
