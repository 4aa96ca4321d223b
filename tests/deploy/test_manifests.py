"""The manifests of deploy/kubernetes/, against the schemas of Kubernetes and against what run.py takes."""

import copy
import functools
import json
import math
import pathlib
import re
import subprocess
import sys
import types

import kubernetes_validate
import pytest
import yaml
from kubeflow_trainer_api import models

from lingpipe import hyperparams, model_registry
from lingpipe.cluster import cluster_config

_FOLDER = pathlib.Path(__file__).parents[2] / 'deploy/kubernetes'
_DOCUMENTS = [(path.stem, document) for path in sorted(_FOLDER.glob('*.yaml'))
              for document in yaml.safe_load_all(path.read_text('utf-8'))]
_ALL = {f'{file}: {document["kind"]}': document for file, document in _DOCUMENTS}
_JOBSET = _ALL['tpu_jobset: JobSet']
_PIPELINE = _ALL['pipeline_jobset: JobSet']
_TRAINJOB, _RUNTIME = _ALL['trainjob: TrainJob'], _ALL['trainjob: TrainingRuntime']
_SLICE, = _JOBSET['spec']['replicatedJobs']
_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
_PARSE = """
import json, sys
from absl import flags
from lingpipe.command_line import run_flags
assert len(flags.FLAGS(sys.argv)) == 1
run_flags.check(flags.FLAGS)
print(json.dumps({name: flags.FLAGS[name].value for name in flags.FLAGS}, default=str))
"""
_SECONDS_UNTIL_KILLED = 30  # Kubernetes' default, which a checkpoint may need more than


def job_of(part):
    return {'apiVersion': 'batch/v1', 'kind': 'Job', 'metadata': {'name': part['name']}, 'spec': part['template']['spec']}


def pod_of(job):
    return job['spec']['template']['spec']


def container_of(job):
    container, = pod_of(job)['containers']
    return container


def job_of_trainjob():
    """Return the Job that Kubeflow Trainer makes of a TrainJob and its runtime of one replicated job."""
    part, = _RUNTIME['spec']['template']['spec']['replicatedJobs']
    trainer, job = _TRAINJOB['spec']['trainer'], copy.deepcopy(job_of(part))
    job['spec'].update(completions=trainer['numNodes'], parallelism=trainer['numNodes'])
    container_of(job).update(args=trainer['args'], env=trainer['env'], resources=trainer['resourcesPerNode'])
    return job


_OF_KUBERNETES = {name: document for name, document in _ALL.items()
                  if document['kind'] not in ('JobSet', 'TrainJob', 'TrainingRuntime')}
_JOB_OF_SLICE = _OF_KUBERNETES['tpu_jobset: Job of JobSet'] = job_of(_SLICE)
_PARTS = {part['name']: job_of(part) for part in _PIPELINE['spec']['replicatedJobs']}
_OF_KUBERNETES.update({f'pipeline_jobset: {name}': job for name, job in _PARTS.items()})
_OF_KUBERNETES['trainjob: Job of TrainJob'] = job_of_trainjob()
_JOBS = {'tpu': _JOB_OF_SLICE, 'gpu': _ALL['gpu_job: Job'], 'chief': _PARTS['chief'], 'worker': _PARTS['worker'],
         'trainjob': job_of_trainjob()}


def arguments_of(job, index):
    """Return the words after 'run.py' in the pod of an index, with variables replaced as Kubernetes does."""
    fields = {variable['name']: variable['valueFrom']['fieldRef']['fieldPath']
              for variable in container_of(job).get('env', []) if 'valueFrom' in variable}
    given = {name: str(index) for name, field in fields.items() if field == _INDEX}
    assert given.keys() >= set(re.findall(r'\$\((\w+)\)', ' '.join(container_of(job)['args'])))
    return [re.sub(r'\$\((\w+)\)', lambda match: given[match[1]], word) for word in container_of(job)['args']]


def parsed(job, index=0):
    return types.SimpleNamespace(**_parsed(*arguments_of(job, index)))


@functools.cache
def _parsed(*arguments):
    """In a process of its own, since benchmarks that other tests import have flags of the same names."""
    ended = subprocess.run([sys.executable, '-c', _PARSE, *arguments], check=True, stdout=subprocess.PIPE)
    return json.loads(ended.stdout)


@pytest.mark.quick
@pytest.mark.parametrize('name', _OF_KUBERNETES)
def test_a_manifest_is_what_kubernetes_takes(name):
    kubernetes_validate.validate(_OF_KUBERNETES[name], kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize('jobset', [_JOBSET, _PIPELINE], ids=['tpu', 'pipeline'])
def test_a_jobset_has_fields_of_its_api_alone(jobset):
    """Kubeflow's classes are made of the API of JobSet, and leave out what that does not know."""
    assert models.JobsetV1alpha2JobSet.from_dict(jobset).to_dict() == jobset


def test_a_trainjob_and_its_runtime_have_fields_of_their_api_alone():
    assert models.TrainerV1alpha1TrainJob.from_dict(_TRAINJOB).to_dict() == _TRAINJOB
    assert models.TrainerV1alpha1TrainingRuntime.from_dict(_RUNTIME).to_dict() == _RUNTIME
    assert _TRAINJOB['spec']['runtimeRef']['name'] == _RUNTIME['metadata']['name']


@pytest.mark.parametrize('job', _JOBS.values(), ids=_JOBS)
def test_a_command_has_flags_of_run_py_and_a_model_that_is_there(job):
    given = parsed(job)
    params = model_registry.GetParams(given.model, 'Train')
    for overrides in given.model_params_override:
        hyperparams.ApplyOverrides(params, overrides)
    assert params.input.batch_size % job['spec']['completions'] == 0
    assert given.mode == 'train' and given.logdir


@pytest.mark.parametrize('job', _JOBS.values(), ids=_JOBS)
def test_pods_that_were_stopped_start_again(job):
    """Exit code 75 is no fault of the training."""
    rules = [rule for rule in job['spec']['podFailurePolicy']['rules']
             if rule.get('onExitCodes', {}).get('values') == [75]]
    assert [rule['onExitCodes']['containerName'] for rule in rules] == [container_of(job)['name']]
    assert pod_of(job)['restartPolicy'] == 'Never', 'which podFailurePolicy asks for'
    assert pod_of(job)['terminationGracePeriodSeconds'] > _SECONDS_UNTIL_KILLED


@pytest.mark.parametrize('job', _JOBS.values(), ids=_JOBS)
def test_a_job_has_a_pod_for_each_host_at_once(job):
    assert job['spec']['completionMode'] == 'Indexed'
    assert job['spec']['completions'] == job['spec']['parallelism']
    assert pod_of(job)['shareProcessNamespace'], 'run.py would be process 1, which loses signals'


def test_the_hosts_of_the_slice_have_its_chips():
    topology = pod_of(_JOB_OF_SLICE)['nodeSelector']['cloud.google.com/gke-tpu-topology']
    chips_of_host = container_of(_JOB_OF_SLICE)['resources']['limits']['google.com/tpu']
    assert math.prod(map(int, topology.split('x'))) == chips_of_host * _SLICE['template']['spec']['completions']


def test_a_lost_host_starts_the_slice_again_however_often():
    """A Job that its podFailurePolicy ends has the reason PodFailurePolicy; others count as restarts."""
    runtime = _RUNTIME['spec']['template']['spec']
    assert _PIPELINE['spec']['failurePolicy'] == _JOBSET['spec']['failurePolicy'] == runtime['failurePolicy']
    rule, = _JOBSET['spec']['failurePolicy']['rules']
    assert (rule['action'], rule['onJobFailureReasons']) == ('RestartJobSetAndIgnoreMaxRestarts', ['PodFailurePolicy'])
    lost, stopped = _SLICE['template']['spec']['podFailurePolicy']['rules']
    assert (lost['action'], stopped['action']) == ('FailJob', 'FailJob')
    assert lost['onPodConditions'][0]['type'] == 'DisruptionTarget' and stopped['onExitCodes']['values'] == [75]
    assert _JOBSET['spec']['failurePolicy']['maxRestarts'] > 0 and _SLICE['template']['spec']['backoffLimit'] == 0


def test_every_pod_of_the_gpu_job_finds_itself_among_the_addresses(tmp_path):
    job, service = _JOBS['gpu'], _ALL['gpu_job: Service']
    port, = (port['port'] for port in service['spec']['ports'])
    (tmp_path / 'cluster.json').write_text(_ALL['gpu_job: ConfigMap']['data']['cluster.json'])
    for index in range(job['spec']['completions']):
        given = parsed(job, index)
        config = cluster_config.read(str(tmp_path / 'cluster.json'), {}, given.task, given.cluster)
        assert config.num_workers == job['spec']['completions']
        assert config.address == f'{job["metadata"]["name"]}-{index}.{service["metadata"]["name"]}:{port}'


def test_every_pod_of_the_pipeline_finds_itself_among_the_addresses(tmp_path):
    name = _PIPELINE['metadata']['name']
    (tmp_path / 'cluster.json').write_text(_ALL['pipeline_jobset: ConfigMap']['data']['cluster.json'])
    for part, job in _PARTS.items():
        for index in range(job['spec']['completions']):
            given = parsed(job, index)
            config = cluster_config.read(str(tmp_path / 'cluster.json'), {}, given.task, given.cluster)
            assert config.address == f'{name}-{part}-0-{index}.{_PIPELINE["spec"]["network"]["subdomain"]}:2222'
            assert config.num_workers == _PARTS['worker']['spec']['completions']


def test_every_pod_of_the_trainjob_finds_itself_in_tf_config():
    job, name = _JOBS['trainjob'], _TRAINJOB['metadata']['name']
    text, = (variable['value'] for variable in container_of(job)['env'] if variable['name'] == 'TF_CONFIG')
    for index in range(job['spec']['completions']):
        environment = {'TF_CONFIG': text.replace('$(JOB_COMPLETION_INDEX)', str(index))}
        config = cluster_config.read(None, environment, None, parsed(job, index).cluster)
        assert config.address == f'{name}-node-0-{index}.{name}:2222'
        assert config.num_workers == job['spec']['completions']


@pytest.mark.parametrize('job, file', [
    ('tpu', 'tpu_jobset'), ('gpu', 'gpu_job'), ('chief', 'pipeline_jobset'), ('worker', 'pipeline_jobset'),
    ('trainjob', 'trainjob')])
def test_pods_are_reached_by_each_other_alone(job, file):
    labels, policy = _JOBS[job]['spec']['template']['metadata']['labels'], _ALL[f'{file}: NetworkPolicy']['spec']
    (source,), = (rule['from'] for rule in policy['ingress'])
    assert policy['policyTypes'] == ['Ingress']
    assert policy['podSelector'] == source['podSelector'] == {'matchLabels': labels}
