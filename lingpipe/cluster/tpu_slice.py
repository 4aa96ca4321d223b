"""The hosts of a TPU slice, which each host reads from TPU_WORKER_HOSTNAMES and TPU_WORKER_ID.

One program, the coordinator, uses a slice of several hosts. It is a client of TensorFlow servers on all of them::

    host 0    chief: lingpipe train ──┬──> worker:0   server, holds the TPUs of host 0      child process of the chief
                                      │
    host 1                            └──> worker:1   server, holds the TPUs of host 1      lingpipe train itself

Nothing here imports TensorFlow, because that reads some environment variables when it is imported.
"""

import os
import re
import subprocess
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

from lingpipe.cluster import child_process, cluster_config

SLICE = 'slice'
_HOSTNAMES, _INDEX = 'TPU_WORKER_HOSTNAMES', 'TPU_WORKER_ID'
_LOAD_LIBRARY = 'TPU_LOAD_LIBRARY'
_PORT = 2222


def read(task: str | None = None, environment: Mapping[str, str] = os.environ) -> cluster_config.ClusterConfig:
    """Return which process of a slice this one is: the chief on host 0, else the worker of its host.

    The port of the chief is the one after that of the first host. Servers connect to it to run Python code.

    Args:
        task: 'worker:0' for the server of host 0; None: as the environment says.
        environment: dict with TPU_WORKER_HOSTNAMES, the hosts in order, separated by commas and with an optional
            ':port', and with TPU_WORKER_ID, the number of this host.

    Raises:
        ValueError: one of the variables is missing or wrong, or the process is not one of this host.
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
    jobs = {'chief': [f'{host}:{int(port) + 1}'], 'worker': workers}
    mine = cluster_config.ClusterConfig(jobs, 'worker', int(index))
    if task not in (None, mine.task):
        raise ValueError(f'--task={task}: with --tpu={SLICE} the server of this host is {mine.task}. Leave --task out.')
    return cluster_config.ClusterConfig(jobs, 'chief', 0) if mine.task_index == 0 and task is None else mine


def leave_tpu_to_server(config: cluster_config.ClusterConfig,
                        environment: MutableMapping[str, str] = os.environ) -> None:
    """Leave the TPUs of the chief's host to the server there; call it before TensorFlow is imported."""
    if config.task_type == 'chief':
        environment[_LOAD_LIBRARY] = '0'


def start_server(command: Sequence[str], environment: Mapping[str, str] = os.environ) -> subprocess.Popen[Any]:
    """Start the server of host 0 with the chief's command line; it does not outlive the chief."""
    own = {name: value for name, value in environment.items() if name != _LOAD_LIBRARY}
    return child_process.start([*command, '--task=worker:0'], env=own)


def target(config: cluster_config.ClusterConfig) -> str:
    """Return the addresses of the hosts of a slice, in the form of `TPUClusterResolver`."""
    return ','.join(f'grpc://{address}' for address in config.jobs['worker'])
