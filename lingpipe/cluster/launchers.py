"""The cluster that Slurm or a TPU slice has started. Other launchers, such as Kubeflow, set TF_CONFIG.

The launcher numbers the processes. Their jobs follow from --cluster and --ps::

    number of the process    0          1           2           3
    pipeline                 chief      worker:0    worker:1    worker:2
    multi_worker             worker:0   worker:1    worker:2    worker:3
    parameter_server         chief      ps:0        worker:0    worker:1          with --ps=1

With --tpu=slice, the chief trains on all hosts, through a TensorFlow server on each host::

    host 0    chief: lingpipe train ──┬──> worker:0   server, holds the TPUs of host 0      child process of the chief
                                      │
    host 1                            └──> worker:1   server, holds the TPUs of host 1      lingpipe train itself

This module does not import TensorFlow, because that import reads a variable that `leave_tpu_to_server` sets.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple

from lingpipe.cluster import cluster_config, waits

AUTO, SLICE = 'auto', 'slice'
_HOSTNAMES, _INDEX = 'TPU_WORKER_HOSTNAMES', 'TPU_WORKER_ID'
_LOAD_LIBRARY = 'TPU_LOAD_LIBRARY'
_PORT = 2222
_FIRST_PORT, _PORTS_OF_A_JOB, _NUM_RANGES = 10000, 100, 220  # below the ports that Linux gives to clients
_SECONDS = 60


class Launched(NamedTuple):
    """The processes that a launcher has started."""

    launcher: str
    addresses: list[str]  # 'host:port' of each process
    rank: int  # the number of this process


def read(cluster_spec: str, task: str | None, mode: str, num_parameter_servers: int | None = None,
         environment: Mapping[str, str] = os.environ) -> cluster_config.ClusterConfig:
    """Return the cluster of this process.

    Args:
        cluster_spec: path of a file in the form of TF_CONFIG. 'auto' takes TF_CONFIG, else the launcher's variables.
        num_parameter_servers: number of parameter servers, which launchers do not report.

    Raises:
        ValueError: the cluster is missing or wrong.
    """
    if cluster_spec != AUTO or environment.get('TF_CONFIG'):
        path = None if cluster_spec == AUTO else cluster_spec
        _say(path or 'TF_CONFIG')
        config = cluster_config.read(path, environment, task, mode)
        if num_parameter_servers not in (None, config.num_parameter_servers):
            raise ValueError(f'--ps={num_parameter_servers}, but {path or "TF_CONFIG"} lists '
                             f'{config.num_parameter_servers} parameter servers. Leave --ps out.')
        return config
    launched = _of_slurm(environment) or _of_tpu_slice(environment)
    if launched is None:
        raise ValueError(
            f'--cluster={mode} needs the other processes, and neither TF_CONFIG nor variables of Slurm or a TPU slice '
            'are set. Start all processes by srun, or on one machine by `lingpipe local_cluster`; or give '
            '--cluster_spec=FILE, in a script lingpipe.connect(FILE); see docs/many_machines.md.')
    jobs = _jobs(launched, mode, num_parameter_servers)
    names = [f'{job}:{index}' for job, addresses in jobs.items() for index in range(len(addresses))]
    name = task or names[launched.rank]
    _say(f'{launched.launcher}: this is {name} of {_counted(jobs)}')
    return cluster_config.read(None, {'TF_CONFIG': json.dumps({'cluster': jobs})}, name, mode)


def _say(found):
    print(f'Cluster by {found}.', file=sys.stderr, flush=True)


def _counted(jobs):
    words = {'chief': 'chief', 'ps': 'parameter server', 'worker': 'worker'}
    return ', '.join(f'{len(jobs[job])} {words[job]}{"s" * (len(jobs[job]) > 1)}' for job in jobs)


def _jobs(launched: Launched, mode: str, num_parameter_servers: int | None) -> dict[str, list[str]]:
    """Return the addresses of each job, in the order of the processes."""
    first, *others = launched.addresses
    if mode == cluster_config.MULTI_WORKER:
        return {'worker': launched.addresses}
    needs_servers = mode == cluster_config.PARAMETER_SERVER
    if needs_servers and not num_parameter_servers:
        raise ValueError(f'{launched.launcher} does not say which processes are parameter servers. Give --ps=1, or '
                         'another number of them.')
    servers = others[:num_parameter_servers] if needs_servers else []
    workers = others[len(servers):]
    if not workers:
        raise ValueError(f'{launched.launcher} has {len(launched.addresses)} process'
                         f'{"es" * (len(launched.addresses) > 1)}, but --cluster={mode} needs a chief'
                         f'{f", {num_parameter_servers} parameter servers" * needs_servers} and at least one worker. '
                         'Start more.')
    return {'chief': [first]} | ({'ps': servers} if servers else {}) | {'worker': workers}


def _of_slurm(environment: Mapping[str, str]) -> Launched | None:
    """Return the processes of this Slurm job step, or None without Slurm."""
    if not environment.get('SLURM_JOB_ID'):
        return None
    job = environment['SLURM_JOB_ID']
    if not environment.get('SLURM_STEP_NODELIST'):
        raise ValueError(f'This process is in job {job} of Slurm, but in no step. Start it by srun: srun lingpipe '
                         'train ...')
    command = ['scontrol', 'show', 'hostnames', environment['SLURM_STEP_NODELIST']]  # such as n[1-3]
    names = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True).stdout
    places = _places(environment, names.split())
    # Two jobs on a node share ports only if their numbers differ by a multiple of 220.
    first = _FIRST_PORT + int(job) % _NUM_RANGES * _PORTS_OF_A_JOB
    addresses = [f'{host}:{first + rank % _PORTS_OF_A_JOB}' for rank, host in enumerate(places)]
    step = f'{job}.{environment.get("SLURM_STEP_ID", "0")}'
    return Launched(f'Slurm step {step}', addresses, int(environment['SLURM_PROCID']))


def _places(environment: Mapping[str, str], hosts: list[str]) -> list[str]:
    """Return the host of each Slurm task."""
    sizes = re.findall(r'(\d+)(?:\(x(\d+)\))?', environment['SLURM_STEP_TASKS_PER_NODE'])  # such as 2(x3),1
    counts = [int(size) for size, times in sizes for _ in range(int(times or 1))]
    nodes = [node for node, count in enumerate(counts) for _ in range(count)]
    index = int(environment['SLURM_PROCID'])
    if len(counts) != len(hosts) or index >= len(nodes) or nodes[index] != int(environment['SLURM_NODEID']):
        raise ValueError(
            f'Task {index} of Slurm is on node {environment["SLURM_NODEID"]}, which does not follow from '
            f'SLURM_STEP_TASKS_PER_NODE={environment["SLURM_STEP_TASKS_PER_NODE"]} and SLURM_STEP_NODELIST='
            f'{environment["SLURM_STEP_NODELIST"]}. Give srun --distribution=block.')
    return [hosts[node] for node in nodes]


def _of_tpu_slice(environment):
    if not environment.get(_HOSTNAMES):
        return None
    return Launched('TPU slice', read_slice(environment=environment).jobs['worker'], int(environment[_INDEX]))


def read_slice(task: str | None = None,
               environment: Mapping[str, str] = os.environ) -> cluster_config.ClusterConfig:
    """Return the cluster of a TPU slice.

    Args:
        task: name of this host's server, such as 'worker:0'; None: on host 0 the chief, elsewhere the server.

    Raises:
        ValueError: a variable is missing or wrong, or `task` is not the server of this host.
    """
    names = [name.strip() for name in environment.get(_HOSTNAMES, '').split(',') if name.strip()]
    index = environment.get(_INDEX, '')
    if not names or not re.fullmatch('[0-9]{1,6}', index) or int(index) >= len(names):
        raise ValueError(
            f'--tpu={SLICE}: {_HOSTNAMES}={",".join(names)!r} and {_INDEX}={index!r} do not say which host of a TPU '
            f'slice this is. Set the first to the names of all hosts, in order and with commas between, and the second '
            'to the number of this one, from 0; see docs/cloud_tpu.md.')
    workers = [name if re.search(r':[0-9]{1,5}$', name) else f'{name}:{_PORT}' for name in names]
    host, _, port = workers[0].rpartition(':')
    jobs = {'chief': [f'{host}:{int(port) + 1}'], 'worker': workers}  # servers connect to the chief to run Python code
    mine = cluster_config.ClusterConfig(jobs, 'worker', int(index))
    if task not in (None, mine.task):
        raise ValueError(f'--task={task}: with --tpu={SLICE} the server of this host is {mine.task}. Leave --task out.')
    return cluster_config.ClusterConfig(jobs, 'chief', 0) if mine.task_index == 0 and task is None else mine


def leave_tpu_to_server(config: cluster_config.ClusterConfig,
                        environment: MutableMapping[str, str] = os.environ) -> None:
    """Keep the chief from loading TPUs that a server uses. Call this before importing TensorFlow."""
    if config.task_type == 'chief':
        environment[_LOAD_LIBRARY] = '0'


def start_server(command: Sequence[str], environment: Mapping[str, str] = os.environ) -> subprocess.Popen[Any]:
    """Start the server of host 0. It ends when the chief ends. `command` is the chief's command line."""
    own = {name: value for name, value in environment.items() if name != _LOAD_LIBRARY}
    return waits.start([*command, '--task=worker:0'], env=own)


def slice_target(config: cluster_config.ClusterConfig) -> str:
    """Return the addresses of a slice's hosts, in the form that `TPUClusterResolver` takes."""
    return ','.join(f'grpc://{address}' for address in config.jobs['worker'])
