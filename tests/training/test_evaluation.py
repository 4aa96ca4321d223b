import os
import shutil
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from lingpipe.cluster import waits
from lingpipe.training import checkpoints, errors, evaluation
from tests.curves import curve


@pytest.fixture
def make_evaluation(tiny):
    """Function that returns the evaluation of a folder."""

    def make(logdir, **overrides):
        return evaluation.CheckpointEvaluation(tiny.params(**overrides), tiny.evaluation_inputs(), logdir)

    return make


def test_one_partition_evaluates_what_two_have_trained(make_evaluation, finished, copied, capsys):
    results = make_evaluation(copied, task__body__num_partitions=1).once()
    assert results['Test'] == pytest.approx(finished.results['Test'], rel=1e-6)
    accuracy, loss = results['Test']['accuracy'], results['Test']['loss']
    assert f'step 12, Test: loss {loss:.4f}, accuracy {100 * accuracy:.2f} %\n' in capsys.readouterr().out


@pytest.mark.parametrize('num_batches', [0, 1])
def test_an_evaluation_in_which_nothing_counts_is_refused(make_evaluation, finished, num_batches):
    made = make_evaluation(finished.logdir)
    batch = tf.zeros([32, 8, 8, 1]), tf.zeros([32], tf.int32), tf.zeros([32])
    with pytest.raises(errors.TrainingError, match='There is nothing to evaluate on'):
        made._evaluator.run([batch] * num_batches)


def test_the_result_is_that_of_plain_keras_with_the_averaged_weights(finished, tiny, stored):
    weights = stored(finished.logdir / 'train/ckpt-12')
    model = keras.Sequential([
        keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(16, 'relu'),
        keras.layers.BatchNormalization(), keras.layers.Dense(10)])
    for layer, name in zip(model.layers[1:], ('dense_1', 'batch_normalization_2', 'dense_4')):
        layer.set_weights([weights[key] for key in sorted(weights) if key.startswith(f'moving_average/{name}/')])
    test = tiny.evaluation_inputs()['Test']
    data = test.Copy().Set(batch_size=360).Instantiate()  # all at once, so that nothing is filled up
    images, labels, _ = next(iter(data.evaluation_dataset()))
    logits = model.predict(images.numpy(), verbose=0)
    loss = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1)
    assert len(labels) == 360
    assert finished.results['Test']['accuracy'] == pytest.approx(np.mean(logits.argmax(-1) == labels.numpy()))
    assert finished.results['Test']['loss'] == pytest.approx(float(loss(tf.one_hot(labels, 10), logits)), rel=1e-5)


def test_a_chosen_checkpoint_is_evaluated_and_drawn_at_its_step(make_evaluation, finished, copied):
    before = curve(copied / 'eval_test', 'accuracy')
    assert [step for step, _ in before] == [4, 8, 12]
    result = make_evaluation(copied).once(str(copied / 'train/ckpt-4'))
    after = curve(copied / 'eval_test', 'accuracy')
    assert sorted(after) == sorted([*before, (4, pytest.approx(result['Test']['accuracy']))])
    assert result['Test']['accuracy'] == pytest.approx(before[0][1])


def test_a_checkpoint_of_another_run_has_no_place_in_the_curves(make_evaluation, copied, tmp_path):
    before = curve(copied / 'eval_test', 'accuracy')
    other = shutil.copytree(copied / 'train', tmp_path / 'other')
    make_evaluation(copied).once(str(other / 'ckpt-4'))
    assert curve(copied / 'eval_test', 'accuracy') == before


def test_what_is_damaged_is_passed_over(make_evaluation, copied, capsys, caplog):
    newest = copied / 'train/ckpt-12'
    os.truncate(f'{newest}.data-00000-of-00001', 100)
    made = make_evaluation(copied)
    made.once()
    assert capsys.readouterr().out.startswith('step 8, Test: ')
    assert [record.getMessage() for record in caplog.records if record.name == 'absl'] == [  # TensorFlow warns too
        f'Checkpoint {newest} cannot be read (Read less bytes than requested). Using {copied}/train/ckpt-8, the newest '
        'that can be read; nothing was deleted.']
    with pytest.raises(errors.DamagedCheckpointError, match=f'Checkpoint {newest} cannot be read .*Choose another one'):
        made.once(newest)


def test_what_training_deletes_meanwhile_is_passed_over(make_evaluation, copied, monkeypatch, capsys):
    made, once = make_evaluation(copied), evaluation.CheckpointEvaluation.once

    def delete_and_evaluate(path):
        if path.endswith('-12'):
            checkpoints.delete(path)
            checkpoints.keep_newest(str(copied / 'train/ckpt-8'), 5)
        return once(made, path)

    monkeypatch.setattr(made, 'once', delete_and_evaluate)
    made.follow(timeout_seconds=0.1)
    assert capsys.readouterr().out.startswith('step 8, Test: ')


def test_curves_are_written_though_nobody_reads_the_output(make_evaluation, copied, monkeypatch):
    def print_to_nobody(*unused, **unused_options):
        raise BrokenPipeError
    monkeypatch.setattr(evaluation, 'print', print_to_nobody, raising=False)
    shutil.rmtree(copied / 'eval_test')
    with pytest.raises(BrokenPipeError):
        make_evaluation(copied).once()
    assert any((copied / 'eval_test').glob('events*'))


def test_ctrl_c_after_the_first_batch_is_not_lost(tiny, monkeypatch):
    def interrupted(*unused):
        raise KeyboardInterrupt

    monkeypatch.setattr(waits.Wait, '__exit__', interrupted)
    with pytest.raises(KeyboardInterrupt):
        evaluation.require_examples('Test', tiny.evaluation_inputs()['Test'].Instantiate(), tiny.params().train)


def test_only_batches_are_waited_for_and_not_who_takes_them(tiny, told, caplog):
    data = types.SimpleNamespace(source='letters', evaluation_dataset=lambda: 'ab')
    params = tiny.params(train__input_timeout_seconds=.4).train
    taken = [(batch, told.event.wait(.8)) for batch in evaluation.batches_of(data, params)]
    assert taken == [('a', False), ('b', False)] and not caplog.records


def test_a_folder_that_is_not_there_is_refused_and_not_made(make_evaluation, tmp_path):
    with pytest.raises(errors.TrainingError, match=f'There is no folder --logdir={tmp_path}/typo, and none was made. '
                                                   'Give'):
        make_evaluation(tmp_path / 'typo')
    assert not list(tmp_path.iterdir())
