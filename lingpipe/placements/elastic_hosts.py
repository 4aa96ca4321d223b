"""A pipeline over hosts that survives the loss of workers.

::

    Trainer on workers 0, 1, 2 ── worker 1 is lost ──> Trainer on workers 0, 2 ── worker 1 is back ──> Trainer on all
              │                                          ^   │                                           ^
              └── newest checkpoint ─────────────────────┘   └── a new checkpoint ───────────────────────┘

The partitions of a lost worker move to other devices. A device may then have several partitions. The chief does not
restart. Only the chief's connections change.
"""

import functools
import gc
import os
import time
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from lingpipe.cluster import answers, cluster_config, waits
from lingpipe.devices import device_kinds
from lingpipe.placements import pipeline_hosts
from lingpipe.planner import resolution
from lingpipe.training import checkpoints, errors, experiment, logdir, planning


class Roster:
    """The workers of a pipeline over hosts, without workers that are silent for too long.

    ::

        a step fails ─> ask all workers ─> wait for the silent ones ─┬─> all answer: training continues with all
                                                                     └─> too long: training continues without them

        each checkpoint: ask the workers that are left out ─> one answers ─> training continues with it too

    The log directory lists the workers that are left out. A restarted chief does not wait for these workers.

    Args:
        replace_after_seconds: how long training waits for a lost worker.

    Attributes:
        config: `ClusterConfig` of the chief, without the workers that are left out.
        num_devices: number of the devices of all workers; None before all have connected.
    """

    def __init__(self, config: cluster_config.ClusterConfig, replace_after_seconds: float,
                 files: logdir.LogDir) -> None:
        self._all, self._patience, self._files = config, replace_after_seconds, files
        left_out, self.num_devices = files.read_left_out() or ([], None)
        self.config = config._replace(left_out=frozenset(config.tasks('worker')).intersection(left_out))

    def gather(self) -> None:
        """Wait for workers, and leave out workers that do not answer in time.

        Raises:
            ConnectionError: no worker answers, or a worker is missing at the beginning of the training run.
        """
        silent = answers.silent_tasks(self._all)
        if not self._is_enough(silent, 0):
            print(f'No answer from {self._all.in_words(silent)}: waiting.', flush=True)
            silent = answers.await_workers(
                self._all, functools.partial(answers.silent_tasks, self._all), self._is_enough)
        remaining = ', '.join(name for name in self._all.tasks('worker') if name not in silent)
        if lost := set(silent) - self.config.left_out:
            print(f'No answer from {self._all.in_words(sorted(lost))} for {self._patience:g} s '
                  f'(--replace_after_seconds): training continues over {remaining}. A worker that answers again takes '
                  'part from the next checkpoint on.', flush=True)
        elif silent or self.config.left_out:
            print(f'Training is over {remaining}.', flush=True)
        self.config = self._all._replace(left_out=frozenset(silent))

    def has_connected(self, num_devices: int) -> None:
        """If no worker is left out, set the attribute `num_devices`. Write it and the left-out workers to a file."""
        if not self.config.left_out:
            self.num_devices = num_devices
        self._files.write_left_out(sorted(self.config.left_out), self.num_devices)

    def is_worker_back(self) -> bool:
        """Return whether a worker that was left out answers again."""
        left_out = self.config.left_out
        others = frozenset(self._all.tasks('worker')) - left_out
        return len(answers.silent_tasks(self._all._replace(left_out=others))) < len(left_out)

    def _is_enough(self, silent, seconds):
        """Return whether training can continue without the silent workers."""
        awaited = set(silent) - self.config.left_out  # workers left out before are asked, but not waited for
        is_over = self.num_devices is not None and seconds >= self._patience  # a run begins with all workers
        return len(silent) < self._all.num_workers and (not awaited or is_over)


class ElasticHosts:
    """Training on the workers of a `Roster`. When a worker is lost or returns, the chief connects again."""

    def __init__(self, config: Any, replace_after_seconds: float, folder: str) -> None:
        self._config, self._patience, self._files = config, replace_after_seconds, logdir.LogDir(folder)
        self._kind: str | None = None
        self._timeout = 0.
        self._num_losses = 0  # without a new checkpoint
        self._newest: str | None = None

    def connect(self, params: Any, kind: str | None = None) -> Any:
        """Connect the chief with the workers. Return params with numbers instead of 'auto'.

        Raises:
            TrainingError: the log directory cannot be written to.
            ConnectionError: workers cannot be reached.
        """
        resolution.validate(params.task.body)
        self._timeout = params.train.checkpoint_timeout_seconds
        with self._waiting_for_files():
            self._files.create()
            self._roster = Roster(self._config, self._patience, self._files)
        self._kind = kind
        device_kinds.configure_graph_optimizer()
        device_kinds.use_virtual_devices(1)
        self._roster.gather()
        # TensorFlow usually streams operations to workers. If a worker is lost, a streamed operation may never get an
        # answer, and `reconnect` would wait for it without end (seen in a third of the losses on a busy machine). Steps
        # are single operations and stay as fast; a checkpoint, for which weights are copied one by one, takes longer.
        os.environ['TF_ENABLE_EAGER_CLIENT_STREAMING_ENQUEUE'] = 'false'
        pipeline_hosts.connect_hosts(self._roster.config)
        self._record_connection()
        return planning.resolved(params, self._roster.num_devices, on_cpu=True)

    def train(self, params: Any, started: float, run: Callable) -> int:
        """Train to the end, and return the exit code. When workers change, training starts again from a checkpoint.

        Args:
            started: `time.monotonic()` at the start of the program.
            run: function that trains from the newest checkpoint, and returns the exit code. Its arguments are params,
                `Placement`, `Roster` and start time. A change of workers resets the start time.

        Raises:
            ConnectionError: all workers are lost.
            OpError: workers are lost repeatedly without a new checkpoint, or something else failed.
        """
        while (code := self._code_of(run, params, started)) is None:
            gc.collect()  # frees objects on the workers
            started = time.monotonic()
            self._roster.gather()
            pipeline_hosts.reconnect(self._roster.config)
            self._record_connection()
            # So unnamed layers get the same names again. Before `reconnect`, the call could wait forever for
            # the lost worker.
            keras.backend.clear_session()
        return code

    def _code_of(self, run, params, started):
        """Return the exit code of `run`, or None if workers have changed."""
        try:
            return run(*self._placed(params), self._roster, started)  # keep nothing that `run` made: `train` frees it
        except errors.WorkerIsBackError:
            return None
        except tf.errors.OpError as error:
            if not self._can_continue(error):
                raise
            print(f'{errors.machine(error)} was lost in the middle of a step ({errors.cause(error)}).', flush=True)
            return None

    def _waiting_for_files(self):
        return waits.for_files(f'log directory {self._files.path}', self._timeout)

    def _record_connection(self):
        with self._waiting_for_files():
            self._roster.has_connected(device_kinds.num_devices())

    def _can_continue(self, error):
        with self._waiting_for_files():
            newest = next(iter(checkpoints.complete(self._files.train)), None)
        self._num_losses = 1 + (self._num_losses if newest == self._newest else 0)
        self._newest = newest
        return self._num_losses <= self._roster.config.num_workers and (
            errors.is_lost_machine(error) or answers.silent_tasks(self._roster.config))

    def _placed(self, params):
        """Return params and their `Placement`."""
        params = params.Copy()
        body = params.task.body
        found = device_kinds.stage_devices(body.num_replicas * body.num_partitions, self._kind)
        if body.devices:  # devices of available workers replace lost devices
            body.devices = [other if self._is_left_out(name) else name for name, other in zip(body.devices, found)]
        return params, experiment.Placement(body.devices or found)

    def _is_left_out(self, device):
        spec = tf.DeviceSpec.from_string(device)
        return f'{spec.job}:{spec.task}' in self._roster.config.left_out
