"""Clusters are read strictly and as data; every mistake is named."""

import json

import pytest

from lingpipe.cluster import cluster_config

JOBS = {'chief': ['10.0.0.2:2222'], 'worker': ['10.0.0.3:2222', '10.0.0.4:2222'], 'ps': ['10.0.0.5:2222']}


def environment(cluster=JOBS, **task):
    return {'TF_CONFIG': json.dumps({'cluster': cluster} | ({'task': task} if task else {}))}


def test_tf_config_says_who_is_who():
    config = cluster_config.read(environment=environment(type='worker', index=1))
    assert config == (JOBS, 'worker', 1, frozenset())
    assert (config.num_workers, config.num_parameter_servers, config.address, config.task) == (
        2, 1, '10.0.0.4:2222', 'worker:1')
    assert cluster_config.read(environment={'TF_CONFIG': config.to_json()}) == config


@pytest.mark.parametrize('jobs, kind, index, leads', [
    (JOBS, 'chief', 0, True), (JOBS, 'worker', 0, False), ({'worker': ['a:1', 'b:1']}, 'worker', 0, True),
    ({'worker': ['a:1', 'b:1']}, 'worker', 1, False)])
def test_the_chief_leads_or_the_first_worker_where_there_is_none(jobs, kind, index, leads):
    assert cluster_config.ClusterConfig(jobs, kind, index).is_chief == leads


def test_one_file_serves_all_machines(tmp_path):
    path = tmp_path / 'cluster.json'
    path.write_text(json.dumps({'cluster': JOBS}))
    task_only = {'TF_CONFIG': json.dumps({'task': {'type': 'ps', 'index': '0'}})}
    assert cluster_config.read(path, environment={}, task='worker:1').task == 'worker:1'
    assert cluster_config.read(path, environment=task_only).task == 'ps:0'
    assert cluster_config.read(path, environment=environment({'worker': ['x:1']}, type='chief')).jobs == JOBS
    with pytest.raises(ValueError, match='does not say which process this one is. Give --task=TYPE:INDEX'):
        cluster_config.read(path, environment={})
    path.write_text(json.dumps({'cluster': JOBS, 'task': {'type': 'chief', 'index': 0}}))
    assert cluster_config.read(path, environment=task_only).task == 'chief:0'
    assert cluster_config.read(path, environment=task_only, task='worker:0').task == 'worker:0'


@pytest.mark.parametrize('cluster, sentence', [
    ({'wroker': ['a:1']}, "unknown job 'wroker'; did you mean worker?"),
    ({'worker': 'a:1'}, "gives 'a:1' for worker. Give a list of addresses"),
    ({'worker': ['a:1'], 'ps': ['A:1']}, 'gives A:1 to both worker:0 and ps:0'),
    ({'worker': ['grpc://a:1']}, "gives 'grpc://a:1' as the address of worker:0.* Give 'host:port'"),
    ({'chief': ['a:1', 'b:1']}, 'names 2 chiefs. Give one.'),
    ({}, "'cluster' of TF_CONFIG is {}")])
def test_a_wrong_cluster_is_refused(cluster, sentence):
    with pytest.raises(ValueError, match=sentence):
        cluster_config.read(environment=environment(cluster, type='worker', index=0))


@pytest.mark.parametrize('task, sentence', [
    ({'type': 'worker', 'index': 2}, 'there is no worker:2. Give an index from 0 to 1'),
    ({'type': 'worker', 'index': -1}, "'task' of TF_CONFIG is 'worker:-1'. Give a job and its index"),
    ({'index': 0}, "the cluster has no job 'None'"),
    ({'type': 'woker'}, 'did you mean worker?')])
def test_a_wrong_task_is_refused(task, sentence):
    with pytest.raises(ValueError, match=sentence):
        cluster_config.read(environment=environment(**task))


@pytest.mark.parametrize('text, sentence', [
    ('', 'TF_CONFIG is not set and no --cluster_spec=FILE was given'),
    ('[]', r'TF_CONFIG holds \[\]'),
    ('{"task": {"type": "worker"}}', "has no entry 'cluster'"),
    ('{"cluster": {"worker": ["a:1"]}, "task": "worker:0"}', "'task' of TF_CONFIG is .* Give a job and its index"),
    ("{'cluster': __import__('os').system('true')}", 'is not valid JSON')])
def test_other_texts_are_refused(text, sentence):
    with pytest.raises(ValueError, match=sentence):
        cluster_config.read(environment={'TF_CONFIG': text})


@pytest.mark.parametrize('mode, jobs, sentence', [
    ('pipeline', ['worker'], 'lists worker, but --cluster=pipeline needs chief and worker. List these.'),
    ('parameter_server', ['chief', 'worker'], 'needs chief and worker and ps'),
    ('multi_worker', ['ps'], 'lists ps, but --cluster=multi_worker needs worker')])
def test_each_mode_needs_its_jobs(mode, jobs, sentence):
    with pytest.raises(ValueError, match=sentence):
        cluster_config.read(environment=environment({job: JOBS[job] for job in jobs}, type=jobs[-1]), mode=mode)


@pytest.mark.parametrize('mode, jobs', [
    ('pipeline', ['chief', 'worker']), ('parameter_server', ['chief', 'worker', 'ps']), ('multi_worker', ['worker'])])
def test_the_jobs_of_a_mode_are_accepted(mode, jobs):
    cluster = {job: JOBS[job] for job in jobs}
    assert cluster_config.read(environment=environment(cluster, type=jobs[0]), mode=mode).jobs == cluster


@pytest.mark.parametrize('kind, index, task', [('chief', 0, 'worker:0'), ('worker', 1, 'worker:2')])
def test_the_first_worker_may_be_called_chief(kind, index, task):
    given = environment({'chief': ['a:1'], 'worker': ['b:1', 'c:1']}, type=kind, index=index)
    config = cluster_config.read(environment=given, mode='multi_worker')
    assert (config.jobs, config.task) == ({'worker': ['a:1', 'b:1', 'c:1']}, task)
    assert cluster_config.read(environment=given, mode='pipeline').jobs == {'chief': ['a:1'], 'worker': ['b:1', 'c:1']}
