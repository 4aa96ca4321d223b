"""Workers and parameter servers as processes of this machine, each in a folder of its own, and a program for them."""

import contextlib
import os
import pathlib
import subprocess
import sys
import tempfile

from benchmarks.support import common
from lingpipe.cluster import child_process, cluster_config
from lingpipe.training import experiment

_PROGRAM = 'from lingpipe.cluster import cluster_config, server; server.serve(cluster_config.read(), use_gpus=False)'


@contextlib.contextmanager
def running(num_workers, num_servers, files):
    """Starts servers on loopback and ends them when the block ends, or this process does.

    Args:
        num_workers: number of workers.
        num_servers: number of parameter servers; may be 0.
        files: list of {file name: text}, what is in the folder of each worker.

    Yields:
        `cluster_config.ClusterConfig` of the chief.
    """
    names = [('worker', index) for index in range(num_workers)] + [('ps', index) for index in range(num_servers)]
    chief, *addresses = cluster_config.free_addresses(1 + len(names))
    jobs = {'chief': [chief]}
    for (job, _), address in zip(names, addresses):
        jobs.setdefault(job, []).append(address)
    with contextlib.ExitStack() as stack:
        for job, index in names:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            for name, text in files[index].items() if job == 'worker' else ():
                pathlib.Path(folder, name).write_text(text)
            process = _start(cluster_config.ClusterConfig(jobs, job, index), folder)
            stack.callback(process.wait)
            stack.callback(process.kill)
        yield cluster_config.ClusterConfig(jobs, 'chief', 0)


def program_of(described, servers):
    """Builds a training program with its weights on parameter servers.

    Args:
        described: `base_model_params.SingleTaskModelParams` with `Train()` and `Task()`.
        servers: `parameter_servers.ParameterServers`.

    Returns:
        The program, its task, and its input.
    """
    params, data = described.Model(), experiment.build_input(described.Train())
    with servers.creating():
        task = experiment.build_task(params, data.input_spec, ['CPU:0'])
    program = servers.program(task, params.train, data.batch_spec)
    program.state_restored()
    return program, task, data


def _start(config, folder):
    environment = {**os.environ, 'TF_CONFIG': config.to_json(), 'PYTHONPATH': common.python_path()}
    return child_process.start([sys.executable, '-c', _PROGRAM], cwd=folder, env=environment, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
