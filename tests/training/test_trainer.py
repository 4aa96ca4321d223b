import json
import os
import re
import shutil
import signal
import sys
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

from lingpipe import layers
from lingpipe.command_line import modes
from lingpipe.input import image_input
from lingpipe.training import checkpoints, errors, evaluation, train_program, trainer
from tests import curves


def test_training_resumes_before_a_truncated_checkpoint(
        tiny, finished, copied, capsys, assert_same_checkpoint):
    """A killed process left it behind, and the result is the same."""
    os.truncate(copied / 'train/ckpt-12.index', 100)
    (copied / 'train/ckpt-16_temp').mkdir()  # as where it is killed while it saves
    (copied / 'train/ckpt-16_temp/part-00000-of-00001.index').write_text('half')
    question = copied / f'train/seen_by_all_{32 * "a"}'
    question.write_text('')
    tiny.only_train(copied)
    assert not (copied / 'train/ckpt-16_temp').exists() and not question.exists()
    assert 'resuming from step 8' in capsys.readouterr().out
    assert_same_checkpoint(copied / 'train/ckpt-12', finished.logdir / 'train/ckpt-12')


def test_a_resumed_run_with_other_batches_goes_on_where_it_was(tiny, tmp_path, monkeypatch):
    positions, open_batches = [], image_input.ImageInput.training_dataset

    def opened(self, position=0, *args):
        positions.append(position)
        return open_batches(self, position, *args)

    monkeypatch.setattr(image_input.ImageInput, 'training_dataset', opened)
    for max_steps, batch_size in ((4, 32), (6, 16), (7, 8)):
        tiny.only_train(tmp_path, train__max_steps=max_steps, input__batch_size=batch_size)
    assert positions == [0, 4 * 32, 4 * 32 + 2 * 16]


def test_a_run_in_a_remote_folder_is_that_in_a_local_one(tiny, finished, signal_at, capsys, assert_same_checkpoint):
    remote = 'ram://bucket/logs'  # a file system of TensorFlow's that no other library knows, as gs:// is
    signal_at(8, signal.SIGINT)
    assert tiny.trainer(remote, eval__interval_steps=4).run() == {}
    assert f'Stopped by SIGINT at step 8; checkpoint {remote}/train/ckpt-8. Run the same ' in capsys.readouterr().out
    assert tiny.trainer(remote, eval__interval_steps=4).run() == finished.results
    assert f'resuming from step 8 of 12, log directory {remote}\n' in capsys.readouterr().out
    assert_same_checkpoint(f'{remote}/train/ckpt-12', finished.logdir / 'train/ckpt-12')
    assert sorted(os.listdir(finished.logdir)) == sorted(tf.io.gfile.listdir(remote))
    with tf.io.gfile.GFile(f'{remote}/best/best.json') as best:
        assert json.load(best) == json.loads((finished.logdir / 'best/best.json').read_text())
    evaluated = evaluation.CheckpointEvaluation(tiny.params(), tiny.evaluation_inputs(), remote).once()
    assert evaluated['Test'] == pytest.approx(finished.results['Test'], rel=1e-6)


def test_a_run_in_two_parts_equals_one_run(
        tiny, finished, tmp_path, assert_same_checkpoint):
    """That holds for any number of steps in a call of the compiled function."""
    tiny.only_train(tmp_path, train__max_steps=5)
    tiny.only_train(tmp_path, train__steps_per_loop=20, train__summary_interval_steps=100)
    assert_same_checkpoint(tmp_path / 'train/ckpt-12', finished.logdir / 'train/ckpt-12')


def test_no_input_stays_open_after_a_run(tiny, tmp_path, monkeypatch):
    """Python would hang at its end if an input that Python makes, such as `from_generator`, was still open then."""
    opened, open_input = [], train_program.TrainProgram.open_input

    def opening(*arguments):
        iterator = open_input(*arguments)
        opened.append(weakref.ref(iterator))
        return iterator

    monkeypatch.setattr(train_program.TrainProgram, 'open_input', opening)
    made = tiny.trainer(tmp_path, train__max_steps=1)
    made.run()
    assert [reference() for reference in opened] == [None]


def test_a_run_resumes_with_other_partitions_and_replicas(tiny, finished, tmp_path, stored):
    tiny.only_train(tmp_path, train__max_steps=4, task__body__num_replicas=2, task__body__num_micro_batches=1)
    for max_steps, num_partitions in ((8, 3), (12, 1)):
        tiny.only_train(tmp_path, train__max_steps=max_steps, task__body__num_partitions=num_partitions)
    expected = stored(finished.logdir / 'train/ckpt-12')
    for name, value in stored(tmp_path / 'train/ckpt-12').items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-6, err_msg=name)


def test_a_non_finite_loss_stops_before_the_weights_are_touched(tiny, tmp_path, contents, stored):
    tiny.only_train(tmp_path / 'good', train__max_steps=5)
    tiny.only_train(tmp_path / 'run', 'PoisonedDigits', train__max_steps=2)
    before = contents(tmp_path / 'run/train')
    failing = tiny.trainer(tmp_path / 'run', 'PoisonedDigits')
    with pytest.raises(errors.TrainingError, match='of step 6 is not finite.* newest checkpoint is '
                                                   '.*/run/train/ckpt-2'):
        failing.run()
    weights = stored(tmp_path / 'good/train/ckpt-5')
    for name, variable in failing._program.named_variables.items():
        np.testing.assert_array_equal(variable.numpy(), weights[f'model/{name}/.ATTRIBUTES/VARIABLE_VALUE'])
    after = contents(tmp_path / 'run/train')
    assert {path: after[path] for path in before} == before
    assert [path.name for path in after.keys() - before.keys() if 'tfevents' not in path.name] == []


def test_a_checkpoint_that_leads_to_a_loss_that_is_not_finite_is_named(tiny, tmp_path):
    overrides = {'train__lr_schedule': None, 'train__clip_gradient_norm_to_value': 0.0}
    tiny.only_train(tmp_path, train__max_steps=4, train__learning_rate=0.05, **overrides)
    with pytest.raises(errors.TrainingError) as caught:
        tiny.only_train(tmp_path, train__learning_rate=1e38, train__save_interval_seconds=0.0, **overrides)
    assert (f'The newest checkpoint is {tmp_path}/train/ckpt-5; if training from there fails again, delete its files. '
            ) in str(caught.value)


def test_an_input_that_ends_is_named_and_its_steps_are_saved(tiny, tmp_path, monkeypatch):
    endless = image_input.ImageInput.training_dataset
    monkeypatch.setattr(image_input.ImageInput, 'training_dataset', lambda *args: endless(*args).take(3))
    with pytest.raises(errors.TrainingError, match=r'^The input of training, ImageInput\(.*, has ended after step 3: '
                                                   'train.max_steps is 12.*repeat'):
        tiny.only_train(tmp_path)
    assert checkpoints.step_of(checkpoints.complete(tmp_path / 'train')[0]) == 3


CHANGES = {
    'another width': ({'task__body__layers[1]__units': 8}, r'of another shape or dtype \(such as model/dense_1/000_kernel float32 \[64, 16'),
    'another dtype': ({'task__body__layers[1]__dtype': 'bfloat16'},
                      r'dense_1/000_kernel float32 .* instead of bfloat16'),
    'no moving average': ({'train__ema_decay': 0.0}, r'it has and the model lacks \(such as moving_average/'),
    'another optimizer': (
        {'train__optimizer': layers.KerasParams(keras.optimizers.Adagrad)}, 'variables it lacks .*Adagrad')}


@pytest.mark.parametrize('change', CHANGES)
def test_a_changed_model_is_refused_and_nothing_is_overwritten(tiny, copied, contents, change):
    before = contents(copied)
    overrides, message = CHANGES[change]
    with pytest.raises(errors.TrainingError, match=f'ckpt-12 is of another model: .*{message}'):
        tiny.only_train(copied, train__max_steps=20, **overrides)
    assert contents(copied) == before


def test_only_the_newest_checkpoints_are_kept_over_several_runs(tiny, copied):
    tiny.only_train(copied, train__max_steps=16, train__save_interval_seconds=0.0, train__save_max_to_keep=2)
    assert {path.stem for path in copied.glob('train/*.index')} == {'ckpt-13', 'ckpt-16'}


def test_checkpoints_are_written_at_intervals_and_at_the_end(
        finished, tiny, tmp_path):
    """A run without curves has the same results."""
    run = tiny.train(
        tmp_path, train__save_interval_seconds=3600.0, train__summary_interval_steps=0, eval__best_metric=None)
    assert {path.stem for path in finished.logdir.glob('train/*.index')} == {'ckpt-1', 'ckpt-4', 'ckpt-8', 'ckpt-12'}
    assert {path.stem for path in tmp_path.glob('train/*.index')} == {'ckpt-12'}
    assert run.results == finished.results  # with curves or without
    assert not (tmp_path / 'best').exists()


@pytest.mark.parametrize('metric, largest', [('accuracy', True), ('loss', False)])
def test_the_best_checkpoint_is_kept_and_a_worse_one_does_not_replace_it(tiny, tmp_path, metric, largest):
    breaks_at_8 = layers.KerasParams(
        keras.optimizers.schedules.PiecewiseConstantDecay, boundaries=[7], values=[0.1, 30.0])
    run = tiny.train(
        tmp_path, train__lr_schedule=breaks_at_8, train__clip_gradient_norm_to_value=0.0, train__ema_decay=0.0,
        eval__interval_steps=4, eval__best_metric=metric)
    best = json.loads((tmp_path / 'best/best.json').read_text())
    assert (best['step'], best['metric']) == (8, metric)
    assert (best['value'] > run.results['Test'][metric]) == largest
    assert [path.name for path in tmp_path.glob('best/*.index')] == ['ckpt-8.index']
    tiny.train(
        tmp_path, train__lr_schedule=breaks_at_8, train__clip_gradient_norm_to_value=0.0, train__ema_decay=0.0,
        eval__best_metric=metric, train__max_steps=13)
    assert json.loads((tmp_path / 'best/best.json').read_text()) == best


def test_examples_of_another_shape_are_refused_before_the_first_step(tiny, tmp_path):
    inputs = {'Test': tiny.evaluation_inputs()['Test'].Set(image_size=16)}
    made = trainer.Trainer(tiny.params(), inputs, tmp_path)
    with pytest.raises(ValueError, match=r'^Test\(\) gives examples that do not fit the model .*256'):
        made.run()
    assert not list(tmp_path.rglob('ckpt-*'))


def test_an_evaluation_that_numbers_the_classes_otherwise_is_refused(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(image_input.ImageInput, 'ClassNames', staticmethod(
        lambda params: ['0', '1'][::-1 if params.split == 'test' else 1]))
    with pytest.raises(ValueError, match=r"^Test\(\) gives class '\d' the number .*such as test.label_offset"):
        tiny.train(tmp_path)


@pytest.mark.parametrize('dataset, words', [
    (lambda self: tf.data.Dataset.range(0), r'^Test\(\) has no examples'),
    (lambda self: tf.data.Dataset.from_tensors('no number').map(tf.strings.to_number), 'no number')],
    ids=['nothing', 'an error'])
def test_an_evaluation_that_cannot_work_is_refused_before_the_first_step(
        tiny, tmp_path, monkeypatch, contents, dataset, words):
    made = tiny.trainer(tmp_path / 'logs')
    monkeypatch.setattr(image_input.ImageInput, 'evaluation_dataset', dataset)
    before = contents(tmp_path)
    with pytest.raises((ValueError, tf.errors.OpError), match=words):
        made.run()
    assert contents(tmp_path) == before


def test_a_dry_run_ends_before_the_first_step(tiny, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    modes._dry_run(tiny.params(), tiny.evaluation_inputs(), None, 'logs/x')
    text = capsys.readouterr().out
    assert 'every input gives a batch: nothing is wrong. Checkpoints in logs/x were not read.' in text and 'Needs ' in text and 'First step' not in text
    assert not list(tmp_path.iterdir())


def test_a_dry_run_refuses_trackers_that_training_would_refuse(tiny, monkeypatch):
    with pytest.raises(ValueError, match="^train.trackers='mlflow' is not possible: it must be a list"):
        modes._dry_run(tiny.params(train__trackers='mlflow'), {}, None)
    monkeypatch.setitem(sys.modules, 'wandb', None)
    with pytest.raises(ImportError, match='wandb'):
        modes._dry_run(tiny.params(train__trackers=['wandb']), {}, None)


def test_a_better_value_at_the_step_of_the_best_brings_its_weights(tiny, tmp_path, assert_same_checkpoint):
    """Training has begun again in a folder, with a better rate."""
    values = []
    for rate in (1e-6, 0.1):
        tiny.train(tmp_path, train__lr_schedule=None, train__learning_rate=rate, train__clip_gradient_norm_to_value=0.0)
        values.append(json.loads((tmp_path / 'best/best.json').read_text())['value'])
        assert_same_checkpoint(tmp_path / 'best/ckpt-12', tmp_path / 'train/ckpt-12')
        shutil.rmtree(tmp_path / 'train')
    assert values[0] < values[1]


def test_the_best_value_belongs_to_its_weights_when_a_run_is_killed(tiny, tmp_path, monkeypatch):
    write = checkpoints.BestCheckpoint.write
    monkeypatch.setattr(checkpoints.BestCheckpoint, 'write',
                        lambda self, record: write(self, record) if record['step'] == 4 else 1 / 0)
    with pytest.raises(ZeroDivisionError):
        tiny.train(tmp_path, eval__interval_steps=4)
    assert json.loads((tmp_path / 'best/best.json').read_text())['step'] == 4
    assert (tmp_path / 'best/ckpt-4.index').exists()


def test_a_misspelt_best_metric_is_refused_before_the_first_step(tiny, copied, contents):
    before = contents(copied)
    made = tiny.trainer(copied, eval__best_metric='acuracy', train__max_steps=20)
    made._program.run = None
    with pytest.raises(ValueError, match=r"^eval.best_metric='acuracy' is not a metric of this task; did you mean "
                                         r"accuracy\? Set it"):
        made.run()
    before[copied / 'control/lock'] = (copied / 'control/lock').read_bytes()
    assert contents(copied) == before


def test_weights_averages_and_slots_start_from_another_run(tiny, finished, tmp_path, stored):
    source = finished.logdir / 'train/ckpt-12'
    optimizer = layers.KerasParams(keras.optimizers.ScheduleFreeAdamW)  # whose momentum begins with the weight
    run = tiny.train(tmp_path, train__max_steps=0, train__init_from_checkpoint=str(source), train__optimizer=optimizer)
    weights, program = stored(source), run.trainer._program
    assert program.average.averages.keys() == program.named_variables.keys()
    for name, variable in program.named_variables.items():
        given = weights[f'model/{name}/.ATTRIBUTES/VARIABLE_VALUE']
        np.testing.assert_array_equal(variable.numpy(), given)
        np.testing.assert_array_equal(program.average.averages[name].numpy(), given)
    for momentum, variable in zip(program.optimizer._momentums, program._trainable):
        np.testing.assert_array_equal(momentum.numpy(), variable.numpy())
    assert int(program.global_step) == 0


@pytest.mark.parametrize('field, value', [
    ('train.max_steps', 1e6), ('train.steps_per_loop', 0), ('train.save_max_to_keep', 0),
    ('train.summary_interval_steps', -1), ('train.save_interval_seconds', -1.0), ('train.ema_decay', '0.9'),
    ('train.l2_regularizer_weight', float('nan')),
    ('eval.interval_steps', True), ('train.save_async', 1), ('train.input_timeout_seconds', -1),
    ('train.checkpoint_timeout_seconds', None), ('train.learning_rate', -0.1),
    ('train.init_from_checkpoint', 3), ('train.init_from_checkpoint_rules', 'x'), ('eval.best_metric', ['loss']),
    ('eval.best_is_largest', 'FALSE')])
def test_a_field_that_cannot_work_is_named_before_anything_is_written(tiny, tmp_path, field, value):
    with pytest.raises(ValueError, match=f'^{field}={re.escape(repr(value))} is not possible: .* must be .*(Set it to|Write it like)'):
        tiny.trainer(tmp_path / 'logs', train__lr_schedule=None, **{field.replace('.', '__'): value})
    assert not (tmp_path / 'logs').exists()


def test_an_input_that_fails_is_named_and_its_steps_are_saved(tiny, tmp_path, monkeypatch):
    endless = image_input.ImageInput.training_dataset

    def look(number):
        return number if number < 3 else {}['my key']

    def failing(*args):
        batches = endless(*args)
        numbers = tf.data.Dataset.range(9).map(lambda number: tf.numpy_function(look, [number], tf.int64))
        return tf.data.Dataset.zip(batches, numbers).map(lambda batch, number: batch)

    monkeypatch.setattr(image_input.ImageInput, 'training_dataset', failing)
    with pytest.raises(errors.TrainingError, match=r"ImageInput\(.*, failed after step 3: .*KeyError: 'my key'.* Repair it"):
        tiny.only_train(tmp_path)
    assert checkpoints.step_of(checkpoints.complete(tmp_path / 'train')[0]) == 3


def test_an_evaluation_that_was_cut_off_comes_first_on_resume(tiny, finished, tmp_path, signal_at):
    signal_at(8, signal.SIGTERM)
    assert tiny.trainer(tmp_path, eval__interval_steps=4).run() == {}
    assert tiny.trainer(tmp_path, eval__interval_steps=4).run() == finished.results
    found, expected = (curves.curve(folder / 'eval_test', 'loss') for folder in (tmp_path, finished.logdir))
    assert found == expected and [step for step, _ in found] == [4, 8, 12]
    assert (tmp_path / 'best/best.json').read_text() == (finished.logdir / 'best/best.json').read_text()


def test_an_error_between_steps_ends_a_run_that_is_saved(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluation.Evaluator, 'run', lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        tiny.train(tmp_path, eval__interval_steps=4)
    assert checkpoints.step_of(checkpoints.complete(tmp_path / 'train')[0]) == 4


def test_a_folder_that_cannot_be_written_to_is_found_before_training(tiny, tmp_path):
    (tmp_path / 'best').write_text('This is not a folder.')
    with pytest.raises(errors.TrainingError, match=f'--logdir={tmp_path} cannot be written to .*best is not a directory'):
        tiny.trainer(tmp_path)


def test_a_dry_run_names_an_input_without_a_batch(tiny, tmp_path, monkeypatch):
    endless = image_input.ImageInput.training_dataset
    monkeypatch.setattr(image_input.ImageInput, 'training_dataset', lambda *args: endless(*args).take(0))
    with pytest.raises(errors.TrainingError, match='^The input of training, ImageInput.* has no batch'):
        modes._dry_run(tiny.params(), {}, None)
