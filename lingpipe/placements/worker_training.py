"""Training with all workers of a cluster: what the chief and the others do, and what their errors mean."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import tensorflow as tf

from lingpipe import hyperparams
from lingpipe.cluster import child_process, cluster_config, peer_connections, ports, server, watchdog
from lingpipe.partition import balancing
from lingpipe.placements import local, workers
from lingpipe.training import (
    errors,
    experiment,
    interruption,
    planning,
    progress,
    state_mirror,
    train_program,
    trainer,
)

_OF_OTHERS = (tf.errors.UnavailableError, tf.errors.CancelledError, tf.errors.AbortedError,
              tf.errors.DeadlineExceededError,
              tf.errors.AlreadyExistsError, tf.errors.InternalError)


class Elastic(NamedTuple):
    """How training continues when workers change, with --replace_after_seconds.

    Attributes:
        is_worker_back: function that returns whether more workers could train; the chief calls it at each checkpoint.
        mirror: where the chief copies its state to.
    """
    is_worker_back: Callable[[], bool]
    mirror: state_mirror.Mirror


class _Chief(watchdog.Alone):
    """Watches for workers that end, and for work that hangs."""

    def __init__(self, joined, is_worker_back=bool):
        super().__init__(joined.watchdog.seconds, is_worker_back, joined.config)
        self._config = joined.config

    def silence_in_words(self):
        return watchdog.silence_in_words(self._config)

    @contextlib.contextmanager
    def minding(self, ask_to_stop):
        with super().minding(ask_to_stop), peer_connections.ending_with_others(self._config):
            yield


class Follower:
    """Trains like the chief's `Trainer`, but leaves checkpoints, curves and evaluation to the chief.

    It starts with the state that the chief has read, so it does not need the log directory.

    Args:
        params: the experiment's Params with `task`, `train`, `eval` and `input`, as those of the chief.
        workers: the `Workers`.
        is_replaceable: whether training continues without this worker after a signal.

    Raises:
        ValueError: a field of `train` or `eval` cannot work.
    """

    def __init__(self, params: Any, workers: workers.Workers, is_replaceable: bool = False) -> None:
        experiment.validate_training_params(params.train, params.eval)
        self._params = params = planning.resolved(params)
        self._workers, self._is_replaceable = workers, is_replaceable
        self._end: threading.Timer | None = None
        self._input = experiment.build_input(params.input, params.train.random_seed)
        task = experiment.build_task(params, self._input.input_spec, workers.devices)
        self._program = workers.program(task, params.train, self._input.batch_spec)
        self._step = 0

    def run(self) -> None:
        """Trains up to `train.max_steps`, or until a signal asks any worker to stop.

        A worker that is replaceable asks nobody to stop: 25 seconds after a signal its process ends.

        Raises:
            TrainingError: when a loss is not finite.
        """
        with self._program.watching_start():
            self._program.state_restored()
        self._step = int(self._program.global_step)
        iterator = self._program.open_input(self._input, self._step)
        with interruption.catch_signals(self._stop) as interrupted, \
                self._telling_bad_records(), self._program.watching_input(self._input), \
                self._program.watching_chief(), peer_connections.ending_with_others(self._workers.config):
            try:
                self._train(iterator, interrupted)
            finally:
                if self._end:
                    self._end.cancel()  # all have stopped together
        by = f' by {interrupted.reason}' if interrupted else ''
        print(f'worker:{self._workers.index} stopped{by} after step {self._step}, and with it all workers.', flush=True)

    def _stop(self):
        if not self._is_replaceable:
            self._program.stopping.assign(True)
            return
        print(server.leaving(self._workers.config), flush=True)
        self._end = threading.Timer(server.SECONDS_TO_LEAVE, os._exit, [0])
        self._end.daemon = True
        self._end.start()

    @contextlib.contextmanager
    def _telling_bad_records(self):
        """Prints the bad records of this worker at the end; the chief sees only those of its own rows."""
        try:
            yield
        finally:
            told = progress.bad_records_text({'Train': self._input})
            if told:
                print(told, flush=True)

    def _train(self, iterator, interrupted):
        p = self._params.train
        while self._step < p.max_steps and not self._program.should_stop(interrupted):
            try:
                self._step += self._program.run(iterator, min(p.steps_per_loop, p.max_steps - self._step)).num_steps
            except tf.errors.InvalidArgumentError as error:
                if train_program.NON_FINITE not in str(error):
                    raise
                raise errors.TrainingError(
                    f'The loss or a gradient of step {int(self._program.global_step) + 1} is not finite; the chief, '
                    'worker:0, says what to do.') from None


def join(params: hyperparams.Params, config: cluster_config.ClusterConfig, kind: Any = None, dog: Any = None) -> Any:
    """Joins the other workers, and chooses the devices of this one.

    Args:
        params: the experiment's Params.
        config: `ClusterConfig`.
        kind: 'CPU' or 'GPU'; None takes the best kind that this machine has.
        dog: `watchdog.Watchdog`, or None.

    Returns:
        Params with numbers in place of 'auto', and the `Workers`.

    Raises:
        ValueError: params cannot work.
        RuntimeError: the port of this worker stays taken.
    """
    body = params.task.body
    validate(params)
    num_devices, on_cpu = local.set_up(body, kind)
    ports.check(config)
    joined = workers.Workers(config, dog)
    params = planning.resolved(params, num_devices, on_cpu)
    body = params.task.body
    joined.choose_devices(body.num_replicas * body.num_partitions, kind, body.devices)
    return params, joined


def train(params: Any, evaluation_inputs: Any, logdir: str, joined: workers.Workers, started: Any = None,
          elastic: Elastic | None = None) -> None:
    """Trains up to the last step, or until a signal asks any of the workers to stop.

    Args:
        params: as in `trainer.Trainer`, the same on all workers.
        evaluation_inputs: as in `trainer.Trainer`.
        logdir: folder of the run, which only the chief reads and writes.
        joined: the `Workers`, with devices.
        started: `time.time()` at the start of the program.
        elastic: `Elastic`, or None: all workers are needed.

    Raises:
        WorkerIsBackError: at a checkpoint, more workers could train.
        ValueError: params cannot work, or differ between workers.
        TrainingError: as `trainer.Trainer`.
    """
    kinds = [tf.DeviceSpec.from_string(name).device_type for name in joined.devices]
    joined.check_same(f'{params.ToText()}{kinds}', 'was started with other params, devices or input')
    if joined.is_chief:
        chief = _Chief(joined, elastic.is_worker_back) if elastic else _Chief(joined)
        mirror = elastic.mirror if elastic else None
        trainer.Trainer(params, evaluation_inputs, logdir, joined, started, chief, mirror).run()
    else:
        is_replaceable = elastic is not None and child_process.is_supervised()  # the others have to restart
        Follower(params, joined, is_replaceable).run()
    joined.leave()


@contextlib.contextmanager
def losses_in_words() -> Iterator[Any]:
    """Turns errors that the end of another worker causes in this scope into a `LostWorkerError`."""
    try:
        yield
    except _OF_OTHERS as error:
        raise errors.LostWorkerError(
            f'Another worker was lost, or a device of this one failed ({errors.cause(error)}); lines above that begin '
            f'with E or W say which. All workers stop. {child_process.restart_in_words()}') from error


def validate(params: hyperparams.Params) -> None:
    """Raises ValueError where workers could cut the model differently.

    Args:
        params: the experiment's Params.
    """
    partition_by = params.task.body.partition_by
    if partition_by in balancing.BY_TIME:
        raise ValueError(
            f'task.body.partition_by={partition_by!r} measures layers on each worker, which may then cut the model '
            "differently. Set it to 'flops', or to the list of end indices that --mode=inspect_model shows on one "
            'machine.')
