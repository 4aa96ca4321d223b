"""PipelineModel of a KerasHub task on raw texts, compared with the task itself."""

import keras
import numpy as np
import pytest

import lingpipe
from tests import needs

pytestmark = needs.keras_hub
TEXTS = np.array(['a b c', 'c b', 'b a b a', 'c', 'a a', 'b c a'])
LABELS = np.array([0, 1, 2, 1, 0, 2])
WEIGHTS = np.array([1.0, 2.0, 0.5, 1.0, 1.0, 3.0])


def make_classifier(hub):
    keras.utils.set_random_seed(0)
    tokenizer = hub.models.BertTokenizer(vocabulary=['[PAD]', '[CLS]', '[SEP]', '[UNK]', '[MASK]', 'a', 'b', 'c'])
    backbone = hub.models.BertBackbone(
        vocabulary_size=8, num_layers=2, num_heads=2, hidden_dim=8, intermediate_dim=16, max_sequence_length=8,
        dropout=0.0)
    return hub.models.BertTextClassifier(
        backbone, num_classes=3, dropout=0.0,
        preprocessor=hub.models.BertTextClassifierPreprocessor(tokenizer, sequence_length=8))


def compiled(model):
    model.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                  metrics=['accuracy'])
    return model


@pytest.fixture(name='pair')
def pair_fixture(hub):
    """The plain task, and the pipeline of one with equal weights."""
    pipe = lingpipe.GPipeLayer.from_keras(make_classifier(hub), num_partitions=2, num_micro_batches=2, schedule='1f1b')
    return compiled(make_classifier(hub)), compiled(lingpipe.PipelineModel(pipe))


def test_fitting_texts_gives_the_weights_of_the_task(pair):
    histories = [model.fit(TEXTS, LABELS, batch_size=4, epochs=2, sample_weight=WEIGHTS, verbose=0).history
                 for model in pair]
    np.testing.assert_allclose(histories[1]['loss'], histories[0]['loss'], rtol=1e-4)
    for found, expected in zip(pair[1].get_weights(), pair[0].get_weights()):
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)


def test_texts_are_put_aside_for_validation(pair):
    plain, found = (model.fit(TEXTS, LABELS, batch_size=2, validation_split=0.4, verbose=0).history for model in pair)
    for name in ('loss', 'val_loss', 'val_accuracy'):
        np.testing.assert_allclose(found[name], plain[name], rtol=1e-4)


def test_a_saved_one_takes_texts_again(pair, tmp_path):
    model = pair[1]
    model.save(tmp_path / 'model.keras')
    loaded = keras.saving.load_model(tmp_path / 'model.keras')
    np.testing.assert_allclose(loaded.predict(TEXTS, verbose=0), model.predict(TEXTS, verbose=0), rtol=1e-4, atol=1e-5)
