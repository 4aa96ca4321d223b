"""Which workers a pipeline over hosts trains on."""

import pytest

from lingpipe.cluster import answers, cluster_config
from lingpipe.placements import elastic_hosts
from lingpipe.training import logdir

CONFIG = cluster_config.ClusterConfig({'chief': ['a:1'], 'worker': ['b:2', 'c:3', 'd:4']}, 'chief', 0)


class Answers:
    """Stands in for `answers.silent_tasks`: of each time that all are asked, the names of those that do not answer."""

    def __init__(self):
        self.silent = []

    def __call__(self, config):
        silent = self.silent.pop(0) if len(self.silent) > 1 else self.silent[0]
        return [name for name in silent if name not in config.left_out]


@pytest.fixture(name='asked')
def asked_fixture(monkeypatch):
    asked = Answers()
    monkeypatch.setattr(answers, 'silent_tasks', asked)
    monkeypatch.setattr(answers, 'SECONDS_BETWEEN_TRIES', 0)
    return asked


@pytest.fixture(name='make')
def make_fixture(tmp_path, asked):
    """Return a function that makes the roster of a chief of one training run, with all others to begin with."""
    files = logdir.LogDir(tmp_path)
    files.create()

    def make(*silent, replace_after_seconds=0.0):
        asked.silent = list(silent)
        made = elastic_hosts.Roster(CONFIG, replace_after_seconds, files)
        made.gather()
        made.has_connected(6 - 2 * len(made.config.left_out))
        return made

    return make


def test_a_run_begins_only_once_all_workers_are_there(make):
    assert make(['worker:1'], ['worker:1'], []).config == CONFIG


def test_a_lost_worker_is_left_out_once_it_has_been_gone_for_too_long(make, asked, capsys):
    made = make([])
    asked.silent = [['worker:0', 'worker:2']]
    made.gather()
    assert made.config.left_out == {'worker:0', 'worker:2'}
    assert made.config.tasks('worker') == ['worker:1']
    assert ('No answer from worker:0 (b:2), worker:2 (d:4) for 0 s (--replace_after_seconds): training continues over '
            'worker:1.') in capsys.readouterr().out


def test_a_lost_worker_that_returns_in_time_is_waited_for(make, asked, capsys):
    made = make([], replace_after_seconds=1000)
    asked.silent = [['worker:0'], ['worker:0'], []]
    made.gather()
    assert made.config == CONFIG
    assert 'No answer from worker:0 (b:2): waiting.' in capsys.readouterr().out


def test_a_chief_that_restarts_does_not_wait_for_whom_it_left_out(make, asked, capsys):
    first = make([])
    asked.silent = [['worker:1']]
    first.gather()
    first.has_connected(4)
    restarted = make(['worker:1'], replace_after_seconds=1000)
    assert restarted.config.left_out == {'worker:1'}
    assert 'Training is over worker:0, worker:2.' in capsys.readouterr().out
    assert restarted.num_devices == 6  # as when the training run began, so that 'auto' means the same


def test_a_worker_left_out_takes_part_again_once_it_answers(make, asked, capsys):
    made = make([])
    asked.silent = [['worker:1']]
    made.gather()
    assert not made.is_worker_back()
    asked.silent = [[]]
    assert made.is_worker_back()
    made.gather()
    assert made.config == CONFIG and not made.is_worker_back()
    assert 'Training is over worker:0, worker:1, worker:2.' in capsys.readouterr().out


def test_nobody_is_left_out_where_nobody_would_remain(make, asked, monkeypatch, capsys):
    made = make([])
    monkeypatch.setattr(answers, 'SECONDS_TO_WAIT', 0)
    asked.silent = [['worker:0', 'worker:1', 'worker:2']]
    with pytest.raises(ConnectionError, match='worker:0.*worker:1.*worker:2'):
        made.gather()
    assert 'worker:2 (d:4): waiting.' in capsys.readouterr().out
