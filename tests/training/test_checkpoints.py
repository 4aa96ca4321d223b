"""Folders of checkpoints, and the record of the best one, whose files are there in name."""

import pytest
import tensorflow as tf

from lingpipe.training import checkpoints, errors


@pytest.fixture
def folder(tmp_path):
    """Folder with ckpt-8, ckpt-9 and ckpt-12."""
    for step in (8, 9, 12):
        tf.train.Checkpoint(step=tf.Variable(step)).write(str(tmp_path / f'ckpt-{step}'))
    return tmp_path


def _steps(folder):
    return list(map(checkpoints.step_of, checkpoints.complete(folder)))


def _names(folder):
    return {path.name for path in folder.iterdir()}


def test_a_checkpoint_counts_while_its_index_is_there(folder):
    assert _steps(folder) == [12, 9, 8]
    (folder / 'ckpt-9.index').unlink()
    assert _steps(folder) == [12, 8] and checkpoints.complete(folder / 'nowhere') == []


def test_what_a_killed_process_was_writing_is_removed_and_nothing_else(folder):
    (folder / 'notes-9.txt').write_text('mine')
    before = _names(folder)
    for name in ('checkpoint.new', 'ckpt-13.data-00000-of-00002', f'seen_by_all_{32 * "a"}'):
        (folder / name).touch()
    (folder / 'ckpt-14_temp').mkdir()
    (folder / 'ckpt-14_temp/part-0.index').touch()
    checkpoints.remove_unfinished(str(folder))
    assert _names(folder) == before


def test_the_newest_are_kept_with_damaged_ones_and_tensorflow_finds_them(folder):
    damaged = str(folder / 'ckpt-12')
    (folder / 'ckpt-9x.index').touch()
    checkpoints.keep_newest(str(folder / 'ckpt-9'), 1, [damaged])
    assert _steps(folder) == [12, 9] and (folder / 'ckpt-9x.index').exists()
    assert tf.train.latest_checkpoint(str(folder)) == str(folder / 'ckpt-9')
    checkpoints.keep_newest(damaged, 3)
    assert _steps(folder) == [12, 9] and tf.train.latest_checkpoint(str(folder)) == damaged


def test_the_one_just_written_is_kept_though_its_step_is_smaller(folder):
    checkpoints.keep_newest(str(folder / 'ckpt-8'), 1)
    assert _steps(folder) == [8]


def test_a_checkpoint_that_is_deleted_before_it_is_read_is_passed_over(tmp_path):
    def write(name):
        for ending in ('index', 'data-00000-of-00001'):
            (tmp_path / f'{name}.{ending}').touch()

    def read(path):
        if path.endswith('ckpt-1'):
            checkpoints.delete(path)
            write('ckpt-2')
            raise errors.TrainingError('There is no checkpoint.')

    write('ckpt-1')
    assert checkpoints.read_newest(str(tmp_path), read) == (str(tmp_path / 'ckpt-2'), [])


@pytest.fixture
def best(tmp_path):
    (tmp_path / 'ckpt-7.index').touch()

    def make(metric='accuracy', is_larger_better=True, resumes=True):
        made = checkpoints.BestCheckpoint(str(tmp_path), metric)
        made.read(is_larger_better, resumes)
        return made

    return make


def test_a_record_reads_back_and_only_better_values_replace_it(best):
    first = best()
    first.write(first.improved(7, {'accuracy': 0.9876543210987654}))
    assert best().improved(8, {'accuracy': 0.9876543210987654}) is None
    assert best().improved(8, {'accuracy': float('nan')}) is None and best().improved(8, {}) is None
    assert best().improved(8, {'accuracy': 0.9876543210987655})['step'] == 8
    assert best(metric=None).improved(8, {'accuracy': 1.0}) is None


@pytest.mark.parametrize('step, other', [(4, {}), (7, {'metric': 'loss'}), (7, {'resumes': False})],
                         ids=['no checkpoint', 'metric', 'run'])
def test_a_record_that_does_not_count_is_replaced(best, caplog, step, other):
    first = best()
    first.write(first.improved(step, {'accuracy': 0.5}))
    assert best(**other).improved(8, {'accuracy': 0.25, 'loss': 3.0})['step'] == 8
    assert 'the next evaluation replaces it' in caplog.text
    assert best().improved(8, {'accuracy': 0.125})['value'] == 0.125  # the record is gone until its checkpoint is there
