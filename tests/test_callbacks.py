"""Callbacks of `PipelineModel.fit`."""

import keras
import numpy as np
import pytest

import lingpipe

X, Y = np.random.default_rng(0).normal(size=(16, 6)).astype('float32'), np.arange(16) % 3


def model(num_partitions=2):
    keras.utils.set_random_seed(0)
    source = keras.Sequential([keras.Input([6]), keras.layers.Dense(8, activation='relu'), keras.layers.Dense(3)])
    made = lingpipe.PipelineModel(lingpipe.GPipeLayer.from_keras(
        source, num_partitions=num_partitions, num_micro_batches=2))
    made.compile('adam', keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=['accuracy'])
    return made


def fit(trained, *callbacks, epochs=3):
    return trained.fit(X, Y, batch_size=8, epochs=epochs, shuffle=False, verbose=0, callbacks=list(callbacks),
                       validation_data=(X, Y)).history['loss']


def test_a_trace_is_written(tmp_path, capsys):
    fit(model(), lingpipe.callbacks.Trace(str(tmp_path / 'trace'), X[:8], Y[:8]))
    assert '2 partitions on 2 devices, 2 micro-batches' in capsys.readouterr().out
    assert (tmp_path / 'trace/timeline.png').read_bytes().startswith(b'\x89PNG')
    assert (tmp_path / 'trace/trace.json').exists()


@pytest.mark.parametrize('batch', [(X[:8], Y[:8]), ()])
def test_a_page_shows_the_run(tmp_path, batch):
    fit(model(), lingpipe.callbacks.Report(str(tmp_path / 'report.html'), *batch))
    text = (tmp_path / 'report.html').read_text('utf-8')
    assert '3 epochs from 20' in text and 'on CPU:0, CPU:1' in text and 'partition  device' in text
    assert text.count('<img') == 2 + 2 * len(batch[:1])  # curves of loss and accuracy, memory, timeline
    assert ('Report was given no batch' in text) == (not batch)


def whole_batch(y_true, outputs):
    return keras.ops.max(keras.ops.abs(outputs))


def test_what_cannot_be_traced_is_refused_before_training(tmp_path):
    trained = model()
    trained.compile('adam', whole_batch)
    before = trained.get_weights()
    with pytest.raises(ValueError, match='computed on the whole batch'):
        fit(trained, lingpipe.callbacks.Trace(str(tmp_path), X[:8], Y[:8]))
    assert all(np.array_equal(*pair) for pair in zip(trained.get_weights(), before))


def test_what_a_page_cannot_show_is_refused_before_training(tmp_path):
    with pytest.raises(ValueError, match='y=None'):
        fit(model(), lingpipe.callbacks.Report(str(tmp_path / 'report.html'), X[:8]))
    plain = model().source
    plain.compile('adam', 'mse')
    with pytest.raises(TypeError, match='is not a PipelineModel'):
        plain.fit(X, X[:, :3], verbose=0, callbacks=[lingpipe.callbacks.Report(str(tmp_path / 'report.html'))])


def test_a_metric_of_several_values_is_left_out(tmp_path):
    trained = model()
    trained.compile('adam', 'mse', metrics=[keras.metrics.F1Score(average=None)])
    path = tmp_path / 'report.html'
    trained.fit(X, np.eye(3)[Y], verbose=0, callbacks=[lingpipe.callbacks.Report(str(path))])
    assert path.read_text('utf-8').count('<img') == 1


def test_a_page_without_its_timeline_says_why_in_a_folder_that_is_made(tmp_path, monkeypatch):
    monkeypatch.setenv('HOME', str(tmp_path))
    trained = model()
    trained.compile('adam', whole_batch)
    fit(trained, lingpipe.callbacks.Report('~/new/report.html', X[:8], Y[:8]))
    assert 'computed on the whole batch' in (tmp_path / 'new/report.html').read_text('utf-8')


class Killed(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        raise KeyboardInterrupt


@pytest.mark.parametrize('num_partitions', [1, 2])
def test_keras_backup_is_resumed_with_other_partitions(tmp_path, num_partitions):
    expected = fit(model())
    with pytest.raises(KeyboardInterrupt):
        fit(model(), keras.callbacks.BackupAndRestore(str(tmp_path)), Killed())
    resumed = fit(model(num_partitions), keras.callbacks.BackupAndRestore(str(tmp_path)))
    np.testing.assert_allclose(resumed, expected[-len(resumed):], rtol=1e-5)
    assert len(resumed) < len(expected)
