"""The comparison of KerasHub's backbones, on a model of Keras's own layers: KerasHub need not be installed."""

import keras
import numpy as np
import pytest
from keras import layers


@pytest.fixture(name='benchmark')
def benchmark_fixture(load_benchmark):
    return load_benchmark('equality.keras_hub')


def embeds():
    model = keras.Sequential(
        [keras.Input([5], dtype='int32'), layers.Embedding(11, 4), layers.Dropout(0.5), layers.Dense(3)])
    return model, np.arange(20).reshape(4, 5) % 11


def test_a_model_with_rows_as_gradients_is_equal(benchmark):
    assert benchmark.try_class(embeds) == ('equal', '')


def test_what_differs_is_named(benchmark, monkeypatch):
    right = benchmark.pipeline_step

    def wrong(*arguments):
        step = right(*arguments)
        return step._replace(gradients=[2 * step.gradients[0], *step.gradients[1:]])

    monkeypatch.setattr(benchmark, 'pipeline_step', wrong)
    result, note = benchmark.try_class(embeds)
    assert result == 'different' and note.endswith('/embeddings by 1.0e+00') and note.count(' by ') == 1
