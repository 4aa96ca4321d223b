"""The processes of a cluster, parsed from TF_CONFIG or a file.

    {"cluster": {"chief": ["10.0.0.2:2222"], "worker": ["10.0.0.3:2222", "10.0.0.4:2222"]},
     "task": {"type": "worker", "index": 0}}
"""

import contextlib
import json
import os
import pathlib
import re
import socket
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from lingpipe import wording

PIPELINE, MULTI_WORKER, PARAMETER_SERVER = MODES = ('pipeline', 'multi_worker', 'parameter_server')
JOBS = ('chief', 'worker', 'ps')
_JOBS_OF_MODES = {PIPELINE: ('chief', 'worker'), MULTI_WORKER: ('worker',), PARAMETER_SERVER: ('chief', 'worker', 'ps')}
_ADDRESS = re.compile(r'([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})', re.ASCII)
_EXPECTED = ('Expected is {"cluster": {"chief": ["host:port"], "worker": ["host:port", ...]}, "task": {"type": '
             '"worker", "index": 0}}; see docs/many_machines.md.')
_TASK = re.compile(r'(\w+):([0-9]{1,6})', re.ASCII)


class ClusterConfig(NamedTuple):
    """The processes of a cluster, and the name of this process."""

    jobs: dict[str, list[str]]  # {'chief' | 'worker' | 'ps': list of 'host:port'}, only existing jobs
    task_type: str  # the job of this process
    task_index: int  # its number in that job, from 0
    left_out: frozenset[str] = frozenset()  # names of processes that are left out for now, such as 'worker:1'

    @property
    def num_workers(self) -> int:
        return len(self.jobs.get('worker', ()))

    @property
    def num_parameter_servers(self) -> int:
        return len(self.jobs.get('ps', ()))

    @property
    def address(self) -> str:
        """The 'host:port' at which peers reach this process."""
        return self.jobs[self.task_type][self.task_index]

    @property
    def task(self) -> str:
        """Name of this process, such as 'worker:1'."""
        return f'{self.task_type}:{self.task_index}'

    @property
    def is_chief(self) -> bool:
        """Whether this process leads. In a cluster without a chief, worker 0 leads."""
        return self.task_index == 0 and self.task_type == ('chief' if 'chief' in self.jobs else 'worker')

    def tasks(self, *jobs: str) -> list[str]:
        """Return the names of all processes of the given jobs, except processes in `left_out`."""
        names = [f'{job}:{index}' for job in jobs for index in range(len(self.jobs.get(job, ())))]
        return [name for name in names if name not in self.left_out]

    def others(self) -> list[str]:
        """Return the names of all peers, except processes in `left_out`."""
        return [name for name in self.tasks('chief', 'worker', 'ps') if name != self.task]

    def address_of(self, name: str) -> str:
        """Return the 'host:port' of a process such as 'worker:1'."""
        job, _, index = name.partition(':')
        return self.jobs[job][int(index)]

    def in_words(self, names: Iterable[str]) -> str:
        """Return a text with names and addresses, such as 'worker:1 (10.0.0.3:2222)'."""
        return ', '.join(f'{name} ({self.address_of(name)})' for name in names)

    def to_json(self) -> str:
        """Return the text of TF_CONFIG for this process."""
        return json.dumps({'cluster': self.jobs, 'task': {'type': self.task_type, 'index': self.task_index}})


def read(cluster_spec_path: str | None = None, environment: Mapping[str, str] = os.environ, task: str | None = None,
         mode: str | None = None) -> ClusterConfig:
    """Read a cluster from a file or from TF_CONFIG.

    Args:
        cluster_spec_path: a file in the form of TF_CONFIG; None: TF_CONFIG itself.
        task: name of this process, such as 'worker:1'; None: the name in the file, else in TF_CONFIG.
        mode: one of MODES. The cluster must have the jobs of this mode and no others; None: any jobs. In multi_worker,
            a chief becomes worker 0.

    Raises:
        ValueError: the cluster is missing or wrong.
    """
    variable = _parse(environment.get('TF_CONFIG') or '{}', 'TF_CONFIG')
    source, config = 'TF_CONFIG', variable
    if cluster_spec_path:
        source = f'--cluster_spec={cluster_spec_path}'
        config = _parse(pathlib.Path(cluster_spec_path).expanduser().read_text('utf-8-sig'), source)
    jobs = _jobs(config, source)
    kind, index = _task(jobs, *_given_task(task, {source: config, 'TF_CONFIG': variable}))
    if mode == MULTI_WORKER and 'chief' in jobs:  # as Vertex AI and Kubeflow call the first worker
        jobs['worker'] = jobs.pop('chief') + jobs.get('worker', [])
        kind, index = 'worker', index + (kind == 'worker')
    if mode and set(jobs) != set(_JOBS_OF_MODES[mode]):
        raise ValueError(f'{source} lists {", ".join(jobs)}, but --cluster={mode} needs '
                         f'{" and ".join(_JOBS_OF_MODES[mode])}. List these.')
    return ClusterConfig(jobs, kind, index)


def host_and_port(address: str) -> tuple[str, int]:
    """Return the host and the port of 'host:port'."""
    host, _, port = address.rpartition(':')
    return host.strip('[]'), int(port)  # sockets require IPv6 hosts without brackets


def device_of(name: str) -> str:
    """Return TensorFlow's name of a process, such as '/job:worker/task:1' for 'worker:1'."""
    return f'/job:{name.replace(":", "/task:")}'


def free_addresses(count: int) -> list[str]:
    """Return `count` loopback addresses with different free ports."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(('127.0.0.1', 0))) for _ in range(count)]
        return [f'127.0.0.1:{each.getsockname()[1]}' for each in sockets]


def _parse(text, source):
    try:
        config = json.loads(text)  # never run as code
    except ValueError as error:
        raise ValueError(f'{source} is not valid JSON ({error}). {_EXPECTED}') from error
    if not isinstance(config, dict):
        raise ValueError(f'{source} holds {config!r}. {_EXPECTED}')
    return config


def _jobs(config, source):
    """Check the cluster, and return the addresses of each job."""
    if 'cluster' not in config:
        missing = 'is not set and no --cluster_spec=FILE was given' if not config else "has no entry 'cluster'"
        raise ValueError(f'{source} {missing}, so that the other processes are unknown. {_EXPECTED}')
    jobs = config['cluster']
    if not isinstance(jobs, dict) or not jobs:
        raise ValueError(f"'cluster' of {source} is {jobs!r}. {_EXPECTED}")
    seen = {}
    for job, addresses in jobs.items():
        if job not in JOBS:
            raise ValueError(f'{source} names an unknown job {job!r}{wording.did_you_mean(job, JOBS)}')
        if not isinstance(addresses, list) or not addresses:
            raise ValueError(f'{source} gives {addresses!r} for {job}. Give a list of addresses, such as '
                             '["host:2222"].')
        for index, address in enumerate(addresses):
            _check_address(address, f'{job}:{index}', seen, source)
    if len(jobs.get('chief', ())) > 1:
        raise ValueError(f'{source} names {len(jobs["chief"])} chiefs. Give one.')
    return dict(jobs)


def _check_address(address, task, seen, source):
    match = _ADDRESS.fullmatch(address) if isinstance(address, str) else None
    if not match or not 1 <= int(match[2]) <= 65535:
        raise ValueError(f"{source} gives {address!r} as the address of {task}. Give 'host:port' with a port "
                         "from 1 to 65535.")
    other = seen.setdefault(address.lower(), task)
    if other != task:
        raise ValueError(f'{source} gives {address} to both {other} and {task}. Give each process a port of its own.')


def _given_task(task, configs):
    """Return where this process's name is given, such as '--task=worker:1', and the name."""
    if task:
        return f'--task={task}', task
    for source, config in configs.items():
        if 'task' in config:
            given = config['task']
            name = f'{given.get("type")}:{given.get("index", 0)}' if isinstance(given, dict) else repr(given)
            return f"'task' of {source}", name
    raise ValueError(f"{next(iter(configs))} does not say which process this one is. Give --task=TYPE:INDEX, such as "
                     "--task=worker:0.")


def _task(jobs, source, name):
    """Check the name of a process, and return the job and the index."""
    match = _TASK.fullmatch(name)
    if not match:
        raise ValueError(f'{source} is {name!r}. Give a job and its index, such as --task=worker:0 or {{"type": '
                         '"worker", "index": 0}.')
    kind, index = match[1], int(match[2])
    if kind not in jobs:
        raise ValueError(f'{source}: the cluster has no job {kind!r}{wording.did_you_mean(kind, jobs)}')
    if index >= len(jobs[kind]):
        raise ValueError(f'{source}: there is no {name}. Give an index from 0 to {len(jobs[kind]) - 1}, one for each '
                         'address.')
    return kind, index
