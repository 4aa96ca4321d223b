"""Metrics of a training run, against plain Keras's evaluation of what the run exports."""

import keras
import numpy as np
import pytest

from lingpipe.layers.keras_params import KerasParams
from lingpipe.models import keras_metrics
from lingpipe.training import evaluation, inference, trainer

METRICS = [KerasParams(keras.metrics.SparseTopKCategoricalAccuracy, k=2, name='top_2'),
           KerasParams(keras_metrics.OfClasses, metric=KerasParams(keras.metrics.Recall))]


def test_a_run_evaluates_as_plain_keras_does_the_exported_model(tiny, tmp_path, capsys):
    """The batches of 100 leave the last one half empty."""
    params = tiny.params(train__max_steps=4, task__metrics=METRICS)
    run = trainer.Trainer(params, tiny.evaluation_inputs(), str(tmp_path))
    run.run()
    assert 'top_2 ' in capsys.readouterr().err
    path, *_ = inference.Exporter(params, str(tmp_path)).run()
    model = keras.models.load_model(path)
    model.compile(metrics=[keras.metrics.SparseTopKCategoricalAccuracy(2)])
    test = tiny.evaluation_inputs()['Test']
    images, labels, _ = next(iter(test.Copy().Set(batch_size=360).Instantiate().evaluation_dataset()))
    logits = model.predict(images, verbose=0)
    recall = keras.metrics.Recall()
    recall.update_state(keras.ops.one_hot(labels, 10), keras.ops.softmax(logits))
    expected = {'top_2': np.mean((-logits).argsort(-1)[:, :2] == labels.numpy()[:, np.newaxis]) * 2,
                'recall': float(recall.result())}
    found = evaluation.CheckpointEvaluation(params, tiny.evaluation_inputs(), str(tmp_path)).once()['Test']
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-5)
