"""Training by the chief and the other workers of a cluster (`--cluster=multi_worker`)."""

import contextlib
import re
import sys
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from lingpipe import hyperparams
from lingpipe.cluster import answers, cluster_config, waits
from lingpipe.devices import device_kinds
from lingpipe.placements import multi_worker, pipeline_hosts
from lingpipe.training import errors, experiment, interruption, planning, progress, train_program, trainer

_OF_OTHERS = (tf.errors.UnavailableError, tf.errors.CancelledError, tf.errors.AbortedError,
              tf.errors.DeadlineExceededError, tf.errors.AlreadyExistsError, tf.errors.InternalError)


class Follower:
    """Training on a worker that is not the chief.

    A `Follower` gets its state from the chief, and needs no log directory.
    """

    def __init__(self, params: Any, workers: multi_worker.Workers) -> None:
        experiment.validate_training_params(params.train, params.eval)
        self._params = params = planning.resolved(params)
        self._workers = workers
        self._input = experiment.build_input(params.input, params.train.random_seed)
        task = experiment.build_task(params, self._input.input_spec, workers.devices)
        self._program = workers.program(task, params.train, self._input.batch_spec)
        self._step = 0

    def run(self) -> int:
        """Train to `train.max_steps`, or until a signal stops any worker. Return the exit code."""
        with waits.for_files('weights to reach all devices', self._params.train.checkpoint_timeout_seconds):
            self._program.state_restored()
        self._step = int(self._program.global_step)
        iterator = self._program.open_input(self._input, self._step)
        with interruption.catch_signals(lambda: self._program.stopping.assign(True)) as interrupted, \
                self._telling_bad_records(), self._program.watching_input(self._input):
            self._train(iterator, interrupted)
        by = f' by {interrupted.reason}' if interrupted else ''
        print(f'worker:{self._workers.index} stopped{by} after step {self._step}, and with it all workers.', flush=True)
        return 0 if self._step >= self._params.train.max_steps else errors.EXIT_TRY_AGAIN

    @contextlib.contextmanager
    def _telling_bad_records(self):
        """Print this worker's bad records at the end."""
        try:
            yield
        finally:
            told = progress.bad_records_text({'Train': self._input})
            if told:
                print(told, flush=True)  # the chief sees only its own rows

    def _train(self, iterator, interrupted):
        p = self._params.train
        while self._step < p.max_steps and not self._program.should_stop(interrupted):
            try:
                with self._workers.watchdog.watch(progress=self._program.position):
                    result = self._program.run(iterator, min(p.steps_per_loop, p.max_steps - self._step))
                self._step += result.num_steps
            except tf.errors.InvalidArgumentError as error:
                if train_program.NON_FINITE not in str(error):
                    raise
                raise errors.TrainingError(
                    f'The loss or a gradient of step {int(self._program.global_step) + 1} is not finite; the chief, '
                    'worker:0, says what to do.') from None


def join(params: hyperparams.Params, config: cluster_config.ClusterConfig, kind: Any = None, dog: Any = None) -> Any:
    """Join the other workers. Return params with numbers instead of 'auto', and the `Workers`.

    See `pipeline_hosts.set_up_here` for `kind`.
    """
    body = params.task.body
    if body.partition_by == 'time':
        raise ValueError(
            f'task.body.partition_by={body.partition_by!r} measures layers on each worker, which may then cut the '
            "model differently. Set it to 'flops', or to the end indices that --mode=inspect_model shows.")
    num_devices, on_cpu = pipeline_hosts.set_up_here(body, kind)
    _meet(config)
    joined = multi_worker.Workers(config, dog)
    device_kinds.use_processes(f'/job:worker/replica:0/task:{joined.index}/')
    params = planning.resolved(params, num_devices, on_cpu)
    body = params.task.body
    joined.devices = body.devices or device_kinds.stage_devices(body.num_replicas * body.num_partitions, kind)
    return params, joined


def _meet(config: cluster_config.ClusterConfig) -> None:
    """Wait until all workers listen."""
    missing = config.others()
    print(f'{config.task} at {config.address} waits for all {config.num_workers} workers.', file=sys.stderr, flush=True)

    def find_missing():
        missing[:] = [name for name in missing if not answers.is_open(config.address_of(name))]
        return list(missing)

    with answers.listening(config):  # others see this socket, later TensorFlow's server at its port
        answers.await_workers(config, find_missing)  # TensorFlow's wait would block Python threads and ignore signals


def train(params: Any, evaluation_inputs: Any, logdir: str, joined: multi_worker.Workers, started: Any = None) -> int:
    """Train to the last step, or until a signal stops any worker. Return the exit code.

    Only the chief reads and writes the log directory.

    Raises:
        ValueError: params are invalid, or differ between workers.
    """
    kinds = [tf.DeviceSpec.from_string(name).device_type for name in joined.devices]
    joined.check_same(f'{params.ToText()}{kinds}', 'was started with other params, devices or input')
    with _ending_others(joined):
        if joined.config.is_chief:
            code = trainer.Trainer(
                params, evaluation_inputs, logdir, joined, started, joined.watchdog).run_to_exit_code()
        else:
            code = Follower(params, joined).run()
    joined.leave()
    return code


@contextlib.contextmanager
def _ending_others(joined: multi_worker.Workers) -> Iterator[None]:
    """End the other workers after an error that no restart can fix."""
    try:
        yield
    except Exception as error:
        if errors.exit_code(error) != errors.EXIT_TRY_AGAIN and not isinstance(error, _OF_OTHERS):
            joined.end_all()  # with code 1: launchers take the largest code, and others would end with 75
        raise


@contextlib.contextmanager
def losses_in_words() -> Iterator[Any]:
    """Convert the TensorFlow errors that a lost or failed worker causes in the `with` block.

    Raises:
        LostWorkerError: another worker was lost, or a device of this worker failed.
        TrainingError: another worker ended with an error.
    """
    try:
        yield
    except _OF_OTHERS as error:
        if found := re.search(f'{multi_worker.ENDED}([0-9]+)', str(error)):
            raise errors.TrainingError(
                f'worker:{found[1]} has ended by an error. Do what its message says, then start the same command on '
                'all workers again.') from None  # no lost machine aborted the sums
        raise errors.LostWorkerError(
            f'Another worker was lost, or a device of this one failed ({errors.cause(error)}); lines above that begin '
            f'with E or W say which. {waits.START_AGAIN}') from error
