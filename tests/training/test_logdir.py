import fcntl
import os
import pathlib
import platform

import keras
import pytest

from lingpipe import layers
from lingpipe.training import best_checkpoint, checkpoint_contents, errors, logdir


def test_a_finished_run_is_laid_out_as_documented(finished):
    found = {str(path.relative_to(finished.logdir).parent / path.name.split('-')[0].split('.out.')[0])
             for path in finished.logdir.rglob('*') if path.is_file()}
    assert found == {
        'control/lock', 'control/params.txt', 'control/model_analysis.txt', 'control/versions.txt',
        'control/evaluated.txt', 'train/checkpoint', 'train/ckpt', 'train/events', 'eval_test/events', 'best/checkpoint',
        'best/ckpt', 'best/best.json'}


def test_what_a_text_of_params_has_more_or_less_is_a_change(tiny):
    """Another layer without weights, or no schedule, would else resume, or be evaluated, without a word."""
    before = tiny.params()
    after = before.Copy()
    after.train.lr_schedule = None
    after.task.metrics = [layers.KerasParams(keras.metrics.TopKCategoricalAccuracy)]
    after.task.body.layers.append(layers.KerasParams(keras.layers.Softmax))
    after.Define('new', 1, 'A field of a later version.')
    there = ['task.body.layers[5] : nothing -> type/keras.layers/Softmax',
             'task.metrics[0] : nothing -> type/keras.metrics/TopKCategoricalAccuracy',
             'train.lr_schedule : type/keras.optimizers.schedules/ExponentialDecay -> NoneType']
    assert logdir.changes(before.ToText(), after.ToText()) == there
    assert logdir.of_the_model(there) == there[:2]
    back = [' : '.join([name, ' -> '.join(reversed(values.split(' -> ')))])
            for name, values in (change.split(' : ') for change in there)]
    assert sorted(logdir.changes(after.ToText(), before.ToText())) == sorted(back)


@pytest.mark.parametrize('name', ['exp[1]', 'exp*', 'exp?', 'a\\\\b'])
def test_a_path_that_tensorflow_takes_for_a_pattern_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match='takes such a path of checkpoints for a pattern'):
        logdir.LogDir(tmp_path / name)
    with pytest.raises(ValueError, match='takes such a path of checkpoints for a pattern'):
        checkpoint_contents.stored_shapes(str(tmp_path / name / 'train/ckpt-1'))


def test_a_folder_that_is_there_but_cannot_be_written_to_is_refused(tmp_path, monkeypatch):
    def refuse(path, *unused):
        raise PermissionError(13, 'Permission denied', path)

    monkeypatch.setattr(os, 'open', refuse)
    with pytest.raises(errors.TrainingError, match=r'cannot be opened \(Permission denied\). Choose a folder'):
        with logdir.LogDir(tmp_path).lock():
            pytest.fail('The lock is held.')


def test_a_disk_that_fills_up_leaves_the_old_file_whole(tmp_path, full_disk, contents):
    made = logdir.LogDir(tmp_path)
    made.create()
    made.write_control('old', 'old analysis')
    before = contents(tmp_path)
    with full_disk(), pytest.raises(errors.TrainingError, match='params.txt could not be written .File too large..'):
        made.write_control('new text' * 1000, 'new analysis')
    assert contents(tmp_path) == before


DAMAGED = [
    *[('best/best.json', text, lambda run: best_checkpoint.BestCheckpoint(run.best, 'accuracy', '').read(True, True))
      for text in ('', '[]', '{"value": NaN}', '{"value": 1' + '0' * 400 + '}')],
    *[('control/versions.txt', text, logdir.LogDir.read_versions) for text in (
        'keras', 'keras 3.15.1\n\nnumpy 2.0', 'a' * 100_000)],
    *[('control/evaluated.txt', text, logdir.LogDir.read_evaluated) for text in ('', 'eight', '8 9', '9' * 5000)],
    *[('control/left_out.json', text, logdir.LogDir.read_left_out) for text in (
        '', '[]', '{}', '{"left_out": 3, "num_devices": 1}')]]


@pytest.mark.parametrize('name, text, read', DAMAGED)
def test_a_damaged_file_says_what_to_do(tmp_path, name, text, read):
    run = logdir.LogDir(tmp_path)
    run.create()
    run.write_control('a : 1', 'analysis')
    run.write_left_out(['worker:1'], 4)
    assert run.read_left_out() == (['worker:1'], 4) and run.read_versions()['python'] == platform.python_version()
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(text)
    with pytest.raises(errors.TrainingError, match=f'{name.split("/")[1]} .*Delete it, or choose another --logdir'):
        read(run)


def test_a_second_holder_is_refused_and_the_first_is_named(tmp_path):
    file = str(tmp_path / 'lock')
    with logdir.hold_lock(file, 'logs'):
        with pytest.raises(errors.TrainingError) as caught, logdir.hold_lock(file, 'logs'):
            pytest.fail('Both hold the lock.')
    assert str(caught.value).startswith(f'--logdir=logs is in use by another process (process {os.getpid()} on ')
    assert str(caught.value).endswith('Wait for its end, stop it, or choose another --logdir; nothing was changed.')
    with logdir.hold_lock(file, 'logs'):
        pass


def test_a_folder_is_replaced_by_one_process_at_a_time(tmp_path):
    run = logdir.LogDir(tmp_path)
    with run.replaced_folder('export') as new:
        (pathlib.Path(new) / 'model').write_text('first')
        with pytest.raises(errors.TrainingError, match='in use by another process'), run.replaced_folder('export'):
            pytest.fail('Both replace the folder.')
    assert (tmp_path / 'export/model').read_text() == 'first' and not (tmp_path / 'export.new').exists()


def test_what_cannot_be_locked_is_not(tmp_path, monkeypatch):
    with logdir.hold_lock('gs://bucket/lock', 'logs'):
        pass

    def refuse(stream, operation):
        raise OSError(37, 'No locks available')

    monkeypatch.setattr(fcntl, 'flock', refuse)
    with logdir.hold_lock(str(tmp_path / 'lock'), 'logs'):
        pass


def test_a_folder_of_this_machine_is_locked_by_either_name(tmp_path):
    with logdir.hold_lock(f'file://{tmp_path}/lock', 'logs'):
        with pytest.raises(errors.TrainingError, match='is in use'), logdir.hold_lock(str(tmp_path / 'lock'), 'logs'):
            pytest.fail('Both hold the lock.')
