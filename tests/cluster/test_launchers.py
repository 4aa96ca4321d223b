"""The cluster that a launcher has started, from the variables that it sets; every mistake is named."""

import json
import os

import pytest

from lingpipe.cluster import launchers

_TPU = {'TPU_WORKER_HOSTNAMES': 't0,t1:8471', 'TPU_WORKER_ID': '1'}


def _slurm(rank, node, **others):
    """Return the variables of a task of five on three nodes."""
    return {'SLURM_JOB_ID': '1321', 'SLURM_STEP_ID': '4', 'SLURM_STEP_NODELIST': 'n[1-3]', 'SLURM_STEP_TASKS_PER_NODE':
            '2(x2),1', 'SLURM_PROCID': str(rank), 'SLURM_NODEID': str(node), **others}


@pytest.fixture(autouse=True)
def scontrol(tmp_path, monkeypatch):
    """Stand in for Slurm's program that lists hosts."""
    program = tmp_path / 'scontrol'
    program.write_text('#!/bin/sh\n[ "$*" = "show hostnames n[1-3]" ] && printf "n1\\nn2\\nn3\\n"\n')
    program.chmod(0o755)
    monkeypatch.setenv('PATH', f'{tmp_path}{os.pathsep}{os.environ["PATH"]}')
    return program


def _read(environment, mode='pipeline', servers=None, task=None):
    return launchers.read('auto', task, mode, servers, environment)


def test_the_tasks_of_a_step_of_slurm_have_jobs_and_ports():
    """The ports are those of job 1321, of which none is that of a neighbouring job."""
    config = _read(_slurm(3, 1))
    assert config.jobs == {
        'chief': ['n1:10100'], 'worker': ['n1:10101', 'n2:10102', 'n2:10103', 'n3:10104']}
    assert config.task == 'worker:2'
    assert _read(_slurm(0, 0, SLURM_JOB_ID='1322')).address == 'n1:10200'


@pytest.mark.parametrize('rank, task', [(0, 'chief:0'), (1, 'ps:0'), (2, 'ps:1'), (3, 'worker:0'), (4, 'worker:1')])
def test_some_tasks_are_parameter_servers(rank, task):
    assert _read(_slurm(rank, [0, 0, 1, 1, 2][rank]), 'parameter_server', 2).task == task


def test_a_tpu_slice_names_its_hosts():
    config = _read(_TPU)
    assert (config.jobs, config.task) == ({'chief': ['t0:2222'], 'worker': ['t1:8471']}, 'worker:0')


def test_tf_config_comes_first_and_a_file_before_all(tmp_path, capsys):
    cluster = {'chief': ['a:1'], 'worker': ['b:1']}
    environment = {**_slurm(0, 0), 'TF_CONFIG': json.dumps({'cluster': cluster, 'task': {'type': 'worker', 'index': 0}})}
    assert _read(environment).address == 'b:1'
    assert capsys.readouterr().err == 'Cluster by TF_CONFIG.\n'
    (tmp_path / 'cluster.json').write_text(json.dumps({'cluster': {'chief': ['c:1'], 'worker': ['d:1']}}))
    assert launchers.read(str(tmp_path / 'cluster.json'), 'chief:0', 'pipeline', None, environment).address == 'c:1'


@pytest.mark.parametrize('environment, mode, sentence', [
    ({}, 'pipeline', 'neither TF_CONFIG nor variables of Slurm.* Start all processes by srun, or on one machine by .* --cluster_spec'),
    ({'SLURM_JOB_ID': '7'}, 'pipeline', 'in job 7 of Slurm, but in no step. Start it by srun'),
    (_slurm(3, 2), 'pipeline', 'Task 3 of Slurm is on node 2, .* Give srun --distribution=block'),
    (_slurm(0, 0), 'parameter_server', 'Slurm step 1321.4 does not say which processes .* Give --ps=1'),
    ({'TPU_WORKER_HOSTNAMES': 'a', 'TPU_WORKER_ID': '0'}, 'pipeline', 'TPU slice has 1 process, but .* at least one worker')])
def test_missing_and_wrong_variables_are_named(environment, mode, sentence):
    with pytest.raises(ValueError, match=sentence):
        _read(environment, mode)


def test_a_number_of_servers_that_differs_from_the_list_is_refused():
    cluster = {'chief': ['a:1'], 'worker': ['b:1'], 'ps': ['c:1']}
    environment = {'TF_CONFIG': json.dumps({'cluster': cluster, 'task': {'type': 'chief', 'index': 0}})}
    assert _read(environment, 'parameter_server', 1).num_parameter_servers == 1
    with pytest.raises(ValueError, match='--ps=2, but TF_CONFIG lists 1 parameter servers. Leave --ps out'):
        _read(environment, 'parameter_server', 2)


def slice_environment(index, names='lm-0.lm,lm-1.lm,lm-2.lm'):
    return {'TPU_WORKER_HOSTNAMES': names, 'TPU_WORKER_ID': index}


@pytest.mark.parametrize(('index', 'task', 'expected'), [
    ('0', None, 'chief:0'), ('0', 'worker:0', 'worker:0'), ('2', None, 'worker:2'), ('2', 'worker:2', 'worker:2')])
def test_host_0_leads_and_the_others_serve(index, task, expected):
    config = launchers.read_slice(task, slice_environment(index))
    assert config.task == expected
    assert config.jobs == {'chief': ['lm-0.lm:2223'], 'worker': [f'lm-{host}.lm:2222' for host in range(3)]}


def test_a_host_may_name_its_port():
    config = launchers.read_slice(environment=slice_environment('1', '10.0.0.2:81, 10.0.0.3'))
    assert launchers.slice_target(config) == 'grpc://10.0.0.2:81,grpc://10.0.0.3:2222'


@pytest.mark.parametrize('given', [{}, slice_environment('3'), slice_environment('one'), slice_environment('0', ' ,')])
def test_an_environment_that_names_no_host_is_refused(given):
    with pytest.raises(ValueError, match='TPU_WORKER_HOSTNAMES=.* and TPU_WORKER_ID=.* do not say which host .* Set '
                                         'the first'):
        launchers.read_slice(environment=given)


def test_the_chief_alone_leaves_the_tpu_to_the_server_of_its_host():
    seen = []
    for index in ('0', '1'):
        given = slice_environment(index)
        launchers.leave_tpu_to_server(launchers.read_slice(environment=given), given)
        seen.append(given.get('TPU_LOAD_LIBRARY'))
    assert seen == ['0', None]
