"""Keras metrics of a training run: where they are shown, and that they are those of the whole batch or dataset."""

import keras
import pytest

from lingpipe.layers.keras_params import KerasParams
from lingpipe.models.keras_metrics import OfClasses
from lingpipe.training import evaluation
from tests.curves import curve

METRICS = [KerasParams(keras.metrics.SparseCategoricalAccuracy, name='accuracy_of_keras'),
           KerasParams(OfClasses, metric=KerasParams(keras.metrics.AUC, curve='PR', multi_label=True, num_labels=10),
                       name='average_precision')]
SETTINGS = {'task__metrics': METRICS, 'train__max_steps': 4, 'train__summary_interval_steps': 2,
            'train__steps_per_loop': 2, 'eval__best_metric': 'average_precision', 'task__body__num_micro_batches': 3}


@pytest.fixture(scope='module')
def measured(tiny, tmp_path_factory):
    return tiny.train(tmp_path_factory.mktemp('measured') / 'logs', **SETTINGS)


def test_an_evaluation_shows_and_draws_them(measured, tiny, capsys):
    result = measured.results['Test']
    assert result['accuracy_of_keras'] == pytest.approx(result['accuracy'])
    assert 0.0 < result['average_precision'] < 1.0
    assert curve(measured.logdir / 'eval_test', 'average_precision') == [
        (4, pytest.approx(result['average_precision']))]
    again = evaluation.CheckpointEvaluation(tiny.params(**SETTINGS), tiny.evaluation_inputs(), str(measured.logdir))
    assert again.once()['Test'] == pytest.approx(result, rel=1e-6)
    assert f', average_precision {result["average_precision"]:.4f}\n' in capsys.readouterr().out


def test_training_draws_those_of_its_batches(measured):
    found, expected = (curve(measured.logdir / 'train', name) for name in ('accuracy_of_keras', 'accuracy'))
    assert len(found) == 2 and found == [(step, pytest.approx(value)) for step, value in expected]
    assert len(curve(measured.logdir / 'train', 'average_precision')) == 2


def test_an_unknown_direction_is_refused_before_a_step(tiny, tmp_path):
    metrics = [*METRICS, KerasParams(
        keras.metrics.MeanMetricWrapper, fn=keras.metrics.sparse_categorical_accuracy, name='wrapped')]
    with pytest.raises(ValueError, match='it is not known whether a larger wrapped is better. Set it to True or False'):
        tiny.only_train(tmp_path / 'logs', **{**SETTINGS, 'task__metrics': metrics, 'eval__best_metric': 'wrapped'})
    assert not list(tmp_path.rglob('ckpt-*'))
