"""A real training on loopback, struck once; seconds are not judged. Its processes are forked: to import TensorFlow is
most of their work."""

import pathlib
import sys

import pytest

from lingpipe.cluster import child_process
from tests import forked_programs


@pytest.fixture
def folder(tmp_path):
    """Folder in which the processes of the training run."""
    path = tmp_path / 'here'
    path.mkdir()
    return path


@pytest.fixture
def processes_are_forked(monkeypatch, folder, fork_commands):
    """A forked process has not the environment that `left_over` looks for, but all of one training have its folder."""
    def start(command, *, env, **unused):
        return forked_programs.ForkedProgram(command[1:], env, folder, has_one_output=True)

    monkeypatch.setattr(child_process, 'start', start)
    fork_commands()


def _processes_in(folder):
    """Returns the processes that run in a folder."""
    return [path for path in pathlib.Path('/proc').iterdir() if path.name.isdigit() and _folder_of(path) == folder]


def _folder_of(process):
    try:
        return (process / 'cwd').readlink()
    except OSError:  # it has ended, or belongs to somebody else
        return None


@pytest.fixture
def results(processes_are_forked, folder, load_benchmark, table, monkeypatch, tmp_path, capsys):
    """The rows that both benchmarks print of one training: `faults` strikes it, and `soak` ends it when it has gone
    on."""
    faults = load_benchmark('faults.faults', '--clusters=pipeline', '--faults=chief killed')
    soak = load_benchmark('faults.soak', '--cluster=pipeline', '--minutes=0', '--kinds=kill,hang')
    training = faults.struck_training.StruckTraining(
        'pipeline', tmp_path / 'struck', max_restarts=20, step_timeout_seconds=60)
    monkeypatch.setattr(faults.struck_training, 'StruckTraining', lambda *unused: training)
    rows = faults._rows('pipeline', ['chief killed'])
    row = next(rows)
    assert len(_processes_in(folder)) > len(training.tasks)  # at least the launcher and a supervisor of each
    monkeypatch.setattr(training, 'start', lambda: None)
    monkeypatch.setattr(faults.struck_training, 'left_over', lambda: _processes_in(folder))
    soak.main([])
    rows.close()
    soaked, = table(capsys.readouterr().out)
    monkeypatch.setattr(faults, '_rows', lambda cluster, names: [row])
    faults.main([])
    struck, = table(capsys.readouterr().out)
    return struck, soaked


def test_table_shows_recovery_after_faults_with_unchanged_weights(results):
    struck, soaked = results
    assert [struck[name] for name in ('--cluster', 'fault', 'outcome')] == [
        'pipeline', 'chief killed', 'resumes']
    assert 0 <= float(struck['noticed after s']) < float(struck['steps resume after s'])
    assert [soaked[name] for name in ('--cluster', 'minutes', 'faults', 'processes left')] == ['pipeline', '0', '0', '0']
    assert int(soaked['restarts']) >= 1
    assert int(soaked['steps lost']) >= int(struck['steps lost'])
    assert soaked['weights'] == 'right: the same bits as an undisturbed training'


def test_processes_of_a_training_run_are_left_over_until_they_end(load_benchmark):
    struck_training = load_benchmark('faults.struck_training')
    training = struck_training.StruckTraining('pipeline', 'unused')
    training._command = [sys.executable, '-S', '-c', 'print("here", flush=True); import time; time.sleep(300)']
    training.start()
    assert training.wait_for('here') == 0
    assert struck_training.left_over() == [training._process.pid]
    training.stop()
    assert struck_training.left_over() == []
