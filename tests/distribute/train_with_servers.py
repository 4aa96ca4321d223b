"""A small cluster of servers on loopback, and trainings in it, in processes of their own: the tests start it with a folder
and the name of one of the functions at the end."""

import os

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
os.environ['TF_ENABLE_ONEDNN_OPTS'] = '0'

import contextlib
import io
import json
import pathlib
import shutil
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from absl import logging
from training import tiny_digits

from lingpipe.distribute import child_process, cluster_config, local_devices, parameter_servers, server
from lingpipe.training import errors, server_training, trainer
from params import linear_regression


class Cluster:
    """A chief, which is this process, two workers and two servers."""

    def __init__(self):
        chief, *others = cluster_config.free_addresses(5)
        self._jobs = {'chief': [chief], 'worker': others[:2], 'ps': others[2:]}
        self._processes = {(job, index): self._start(job, index) for job in ('worker', 'ps') for index in range(2)}
        self.config = cluster_config.ClusterConfig(self._jobs, 'chief', 0)

    def _start(self, job, index):
        config = cluster_config.ClusterConfig(self._jobs, job, index)
        return child_process.start(
            [sys.executable, __file__], env={**os.environ, 'TF_CONFIG': config.to_json()}, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)

    def kill_after_steps(self, task, logdir):
        """Kills a task when the first checkpoint is there, and starts it again where it was a worker."""
        while not pathlib.Path(logdir, 'train/checkpoint').exists():
            time.sleep(0.05)
        self._processes[task].kill()
        self._processes[task].wait()
        if task[0] == 'worker':
            self._processes[task] = self._start(*task)
            self._processes[task].wait()  # it ends with the thread that started it


def train(experiment, logdir, servers, **overrides):
    """Trains, with servers or on this machine alone where there are None, and returns what was printed."""
    params = experiment.Model()
    devices = [f'CPU:{index}' for index in range(params.task.body.num_partitions)]
    params.Define('input', experiment.Train(), '')
    params.train.Set(**overrides)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            if servers:
                servers.devices = devices
                server_training.train(params, {'Test': experiment.Test()}, logdir, servers)
            else:
                trainer.Trainer(params, {'Test': experiment.Test()}, logdir, devices).run()
        except errors.TrainingError as error:
            print(f'Error {errors.exit_code(error)}: {error}')
    return printed.getvalue()


class Digits(tiny_digits.TinyDigits):
    """Batch norm, clipping, regularisers, moving averages, momentum and a schedule, but no drop-out."""

    NUM_MICRO_BATCHES = 2

    def Task(self):
        p = super().Task()
        p.body.num_micro_batches = self.NUM_MICRO_BATCHES
        p.body.layers = [layer for layer in p.body.layers if layer.cls.__name__ != 'Dropout']
        return p


class TwiceAsManyMicroBatches(Digits):
    """What one machine must do for the statistics of two shares."""

    NUM_MICRO_BATCHES = 4


def find_true_weights(cluster, servers, folder):
    texts = {}
    for name, servers.update, servers.max_staleness in (('async', 'async', None), ('sync', 'sync', None), ('limited', 'async', 0)):
        texts[name] = train(linear_regression.EightWeights(), f'{folder}/{name}', servers, max_steps=200)
    return texts


def digits(cluster, servers, folder):
    """Steps in sync, of which the third goes on from a checkpoint; then more on this machine alone; the same here only; more, async."""
    servers.update, servers.max_staleness = 'sync', None
    texts = [train(Digits(), f'{folder}/sync', servers, max_steps=steps) for steps in (2, 3)]
    shutil.copytree(f'{folder}/sync', f'{folder}/sync_then_alone')
    (pathlib.Path(folder, 'sync_then_alone/train/checkpoint')).write_text('model_checkpoint_path: "ckpt-3"')
    texts += [train(TwiceAsManyMicroBatches(), f'{folder}/{name}', None, max_steps=5) for name in ('sync_then_alone', 'alone')]
    servers.update = 'async'
    texts.append(train(Digits(), f'{folder}/sync', servers, max_steps=9))
    return texts


def faults(cluster, servers, folder):
    """A worker is killed and comes back; then a server is killed."""
    servers.update, texts = 'async', {}
    for name, task in (('worker', ('worker', 1)), ('ps', ('ps', 0))):
        threading.Thread(target=cluster.kill_after_steps, args=(task, f'{folder}/{name}'), daemon=True).start()
        texts[name] = train(linear_regression.EightWeights(), f'{folder}/{name}', servers, max_steps=800, save_interval_seconds=0.5)
    return texts


def main():
    config = cluster_config.read() if 'TF_CONFIG' in os.environ else None
    if config:
        return server.serve(config, num_cpu_devices=2)
    local_devices.use_virtual_devices(2)
    cluster = Cluster()
    servers = parameter_servers.ParameterServers(cluster.config, timeout_seconds=60)
    logging.set_verbosity(logging.FATAL)
    folder, trial = sys.argv[1:]
    results = globals()[trial](cluster, servers, folder)
    pathlib.Path(folder, 'results.json').write_text(json.dumps(results))


if __name__ == '__main__':
    main()
