"""Kills at chosen moments of saves, of one process and of a cluster; and what files tell of a kill."""

import random
import subprocess
import sys

import pytest

from lingpipe.cluster import child_process
from tests import forked_programs

_RIGHT = ('At the end all values are those of an undisturbed run, bit for bit. No file is left of checkpoints that never '
          'counted.')


@pytest.fixture
def save_moments(load_benchmark):
    """The module."""
    return load_benchmark('faults.save_moments')


def test_a_run_killed_at_each_moment_of_saves_ends_the_same(table, tmp_path, save_moments):
    program = forked_programs.ForkedProgram(
        ['-m', 'benchmarks.faults.killed_saves', '--kills=7', '--at_each_moment=1', '--seconds=0.1'], {}, tmp_path)
    printed, errors = program.communicate()
    assert program.returncode == 0, errors
    assert {row['killed']: row['times, chosen'] for row in table(printed)} == {
        **dict.fromkeys(save_moments.MOMENTS, '1'), save_moments.ELSE: ''}
    assert _RIGHT in printed


def test_shares_of_killed_processes_never_count(load_benchmark, table, tmp_path, monkeypatch, capsys, fork_commands):
    """A worker is killed while it writes its share, and the chief when all shares are written."""
    def start(command, *, env, **unused):
        return forked_programs.ForkedProgram(command[1:], env, tmp_path, has_one_output=True)

    monkeypatch.setattr(child_process, 'start', start)
    fork_commands()
    shares = load_benchmark('faults.killed_shares', '--times=1')
    kills = [('worker 1', shares.save_moments.VALUES), ('chief', shares.save_moments.UNLISTED)]
    monkeypatch.setattr(shares, 'KILLS', kills)
    shares.main([])
    printed = capsys.readouterr().out
    assert [(row['killed'], row['moment'], row['times']) for row in table(printed)] == [(*kill, '1') for kill in kills]
    assert 'whose checkpoints have 3 shares. Every listed checkpoint was whole' in printed
    assert _RIGHT in printed


@pytest.fixture
def folder(tmp_path):
    """Folder of checkpoints with two in its list."""
    (tmp_path / 'checkpoint').write_text('model_checkpoint_path: "ckpt-2"\nall_model_checkpoint_paths: "ckpt-1"\n')
    for step in (1, 2):
        write(tmp_path, f'ckpt-{step}.index', f'ckpt-{step}.data-00000-of-00001')
    return tmp_path


def write(folder, *names):
    """Writes files."""
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text('')


_PART = 'ckpt-3_temp/part-0000'
_WHOLE_3 = ('ckpt-3.index', 'ckpt-3.data-00000-of-00001')
_NEW_LIST = 'checkpoint.new'


@pytest.mark.parametrize('moment, names', [
    ('VALUES', [f'{_PART}0-of-00002.data-00000-of-00001', f'{_PART}0-of-00002.index']),
    ('MERGE', [f'{_PART}0-of-00002.index', f'{_PART}1-of-00002.index']),
    ('UNLISTED', _WHOLE_3), ('LIST', [*_WHOLE_3, _NEW_LIST]), ('LIST', [_NEW_LIST]), ('ELSE', [])])
def test_new_files_tell_at_which_moment_a_process_was_killed(save_moments, folder, moment, names):
    before = save_moments.names_in(folder)
    write(folder, *names)
    assert save_moments.left(folder, before) == getattr(save_moments, moment)
    if names and 'temp' not in names[0]:
        assert save_moments.left(folder, save_moments.names_in(folder)) == save_moments.ELSE
        assert save_moments.unlisted(folder) == sorted(names)


def test_a_listed_checkpoint_without_index_was_being_deleted(save_moments, folder):
    (folder / 'ckpt-1.index').unlink()
    assert save_moments.left(folder, save_moments.names_in(folder)) == save_moments.DELETION


def test_files_that_do_not_fit_a_chosen_moment_are_an_error(save_moments, folder):
    before = save_moments.names_in(folder)
    save_moments.require_moment(save_moments.COPY, folder, before)
    with pytest.raises(RuntimeError, match='was killed between index and list, but left .* else: steps, copies'):
        save_moments.require_moment(save_moments.UNLISTED, folder, before)


def test_a_process_is_killed_only_while_it_writes(save_moments, tmp_path):
    """It closes the file again and again, and dies with the file open."""
    program = '''
import os, time
os.mkdir('ckpt-1_temp')
while True:
    with open('ckpt-1_temp/part-00000-of-00001.data-00000-of-00001.tempstate1', 'w') as file:
        file.write('open')
        file.flush()
        time.sleep(.02)
        file.truncate(0)
        file.seek(0)
    time.sleep(.02)
'''
    process = subprocess.Popen([sys.executable, '-S', '-c', program], cwd=tmp_path)
    save_moments.kill_while_it_writes(process.pid, random.Random(0))
    assert process.wait() == -9


def test_names_of_wrong_values_and_of_files_left_are_told(save_moments):
    assert save_moments.verdict(['a', 'b'], ['ckpt-3.index']) == (
        'WRONG at the end: a, b. LEFT BEHIND: ckpt-3.index.')
    assert save_moments.verdict([], []) == _RIGHT
