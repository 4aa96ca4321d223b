"""Workers that meet before TensorFlow connects them; threads stand in for the processes of the others."""

import concurrent.futures

import pytest

from lingpipe.cluster import child_process, cluster_config, watchdog
from lingpipe.placements import elastic_workers


@pytest.fixture(name='configs')
def configs_fixture():
    """Returns the `ClusterConfig` of each of two workers."""
    jobs = {'worker': cluster_config.free_addresses(2)}
    return [cluster_config.ClusterConfig(jobs, 'worker', index) for index in range(2)]


def test_all_workers_meet(configs, tiny, capsys):
    with concurrent.futures.ThreadPoolExecutor() as threads:
        for met in [threads.submit(elastic_workers.meet_all, tiny.params(), config) for config in configs]:
            met.result(60)
    assert f'worker:1 at {configs[1].address} waits for all 2 workers.' in capsys.readouterr().err


def test_a_worker_that_is_missing_is_named(configs, tiny, monkeypatch):
    monkeypatch.setattr(watchdog, 'SECONDS_TO_CONNECT', 0)
    with pytest.raises(ConnectionError, match=rf'no answer from worker:1 \({configs[1].address}\), of 2 workers'):
        elastic_workers.meet_all(tiny.params(), configs[0])


@pytest.mark.parametrize('variables, words', [
    ({}, 'Start the same command on all of them again, or give them --max_restarts: '),
    ({'LINGPIPE_HEARTBEAT': '7'}, 'All restart (--max_restarts): ')])
def test_who_has_a_supervisor_is_not_told_to_restart(variables, words, monkeypatch):
    monkeypatch.delenv('LINGPIPE_HEARTBEAT', raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert child_process.restart_in_words() == f'{words}training resumes from its newest checkpoint.'
