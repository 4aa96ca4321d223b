"""How a pipeline is cut while workers are left out."""

import threading
import types

import pytest

from lingpipe.cluster import answers, cluster_config
from lingpipe.pipeline import gpipe_layer
from lingpipe.placements import elastic_hosts, pipeline_hosts
from lingpipe.training import logdir


@pytest.mark.parametrize('fields, num_devices, num_partitions', [
    ({}, 2, 2), ({}, 5, 3), ({'num_replicas': 2}, 5, 2),
    ({'num_replicas': 2}, 1, 3),
    ({'partition_by': [1, 2, 4]}, 2, 3), ({'memory_limit': 1e9}, 2, 3), ({'devices': ['CPU:0', 'CPU:1', 'CPU:2']}, 2, 3),
    ({'schedule': 'interleaved_1f1b', 'num_virtual_stages': 2, 'num_micro_batches': 3}, 2, 3)])
def test_the_model_is_cut_anew_unless_the_cut_is_given(fields, num_devices, num_partitions, monkeypatch, tmp_path):
    monkeypatch.setattr(pipeline_hosts, 'count', lambda: num_devices)
    body = gpipe_layer.GPipeLayer.Params().Set(num_partitions=3, **fields)
    workers = elastic_hosts.ElasticHosts(None, 1, str(tmp_path))
    for left_out, expected in ({'worker:1'}, num_partitions), ((), 3):
        workers._roster = types.SimpleNamespace(config=types.SimpleNamespace(left_out=left_out))
        assert workers._num_partitions(body) == expected


CONFIG = cluster_config.ClusterConfig({'chief': ['a:1'], 'worker': ['b:2', 'c:3', 'd:4']}, 'chief', 0)


class Answers:
    """Stands in for `answers.silent_tasks`: of each time that all are asked, the names of those that do not answer."""

    def __init__(self):
        self.silent = []

    def __call__(self, config):
        silent = self.silent[0] if self.silent else []  # threads of earlier tests may ask too
        if len(self.silent) > 1 and threading.current_thread() is threading.main_thread():
            self.silent.pop(0)  # threads that watch for lost workers take nothing away
        return [name for name in silent if name not in config.left_out]


@pytest.fixture(name='asked')
def asked_fixture(monkeypatch):
    asked = Answers()
    monkeypatch.setattr(answers, 'silent_tasks', asked)
    monkeypatch.setattr(answers, 'SECONDS_BETWEEN_TRIES', 0)
    monkeypatch.setattr(elastic_hosts, '_SECONDS_BETWEEN_LOOKS', 0.01)
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
    assert ('worker:0 (b:2), worker:2 (d:4) have not answered for 0 s (--replace_after_seconds): training continues '
            'over worker:1.') in capsys.readouterr().out


def test_a_lost_worker_that_returns_in_time_is_waited_for(make, asked, capsys):
    made = make([], replace_after_seconds=1000)
    asked.silent = [['worker:0'], ['worker:0'], []]
    made.gather()
    assert made.config == CONFIG
    assert 'No answer from worker:0 (b:2): waiting for 1000 s (--replace_after_seconds).' in capsys.readouterr().out


def test_a_chief_that_restarts_does_not_wait_for_whom_it_left_out(make, asked, capsys):
    first = make([])
    asked.silent = [['worker:1']]
    first.gather()
    first.has_connected(4)
    restarted = make(['worker:1'], replace_after_seconds=1000)
    assert restarted.config.left_out == {'worker:1'}
    assert ('No answer from worker:1 (c:3), left out before: training is over worker:0, worker:2.'
            in capsys.readouterr().out)
    assert restarted.num_devices == 6  # as when the training run began, so that 'auto' means the same


def test_a_worker_left_out_takes_part_again_once_it_answers(make, asked, capsys):
    made = make([])
    asked.silent = [['worker:1']]
    made.gather()
    assert not made.is_worker_back()
    asked.silent = [[]]
    assert made._is_back.wait(60)
    assert made.is_worker_back()
    made.gather()
    assert made.config == CONFIG and not made.is_worker_back()
    assert 'worker:1 (c:3) answers again: training continues over worker:0, worker:1, worker:2.' in capsys.readouterr().out


def test_nobody_is_left_out_where_nobody_would_remain(make, asked, monkeypatch, capsys):
    made = make([])
    monkeypatch.setattr(answers, 'SECONDS_TO_WAIT', 0)
    asked.silent = [['worker:0', 'worker:1', 'worker:2']]
    with pytest.raises(ConnectionError, match='worker:0.*worker:1.*worker:2'):
        made.gather()
    assert 'worker:2 (d:4): waiting, for 0 s at most.' in capsys.readouterr().out
