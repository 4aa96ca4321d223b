"""Which workers of --cluster=multi_worker train together: those that answer, and the others once they are back.

::

    4 workers, 16 of 64 rows each ── worker 2 is lost ─> all end ─> 3 answer; 2 of them can share 64 rows, 32 each;
                                                                    the third waits until all 4 are back
"""

import math
import sys
from typing import Any

from lingpipe.cluster import cluster_config, ports, roll_call, waits, watchdog
from lingpipe.placements import worker_training
from lingpipe.training import handed_over_state, logdir


def meet(params: Any, config: cluster_config.ClusterConfig, folder: str, replace_after_seconds: float
         ) -> tuple[cluster_config.ClusterConfig, worker_training.Elastic]:
    """Waits until worker 0 has decided which workers train together.

    A training run begins with all workers, and can continue with fewer.

    Args:
        params: the experiment's Params.
        config: `ClusterConfig` with all workers.
        folder: log directory of the run, which only worker 0 reads and writes.
        replace_after_seconds: how long training waits for a lost worker.

    Returns:
        `ClusterConfig` of the workers that train together, and how training continues when they change.

    Raises:
        ValueError: params cannot work.
        TrainingError: the log directory cannot be read or written to.
        ConnectionError: the workers that answer are too few.
        RuntimeError: the port of this worker stays taken.
    """
    worker_training.validate(params)
    if config.is_chief:
        return _call(params, config, logdir.LogDir(folder), replace_after_seconds)
    with waits.Wait(_chief_in_words(config), seconds=0):
        members = roll_call.answer(config)
    print(f'{config.task} trains as number {members.task_index} of {members.num_workers} workers.', flush=True)
    return members, worker_training.Elastic(bool, handed_over_state.HandedOverState())


def meet_all(params: Any, config: cluster_config.ClusterConfig) -> None:
    """Waits until all workers are there, in Python: TensorFlow would wait for them with all threads blocked.

    Args:
        params: the experiment's Params.
        config: `ClusterConfig` of a worker.

    Raises:
        ValueError: params cannot work.
        ConnectionError: workers are missing for 300 seconds; the message names them.
        RuntimeError: the port of this worker stays taken.
    """
    worker_training.validate(params)
    ports.check(config)
    print(f'{config.task} at {config.address} waits for all {config.num_workers} workers.', file=sys.stderr, flush=True)
    if config.is_chief:
        caller = roll_call.Caller(config, lambda count: count == config.num_workers)
        with _waiting_for_others(caller):
            caller.call(math.inf)
    else:
        with waits.Wait(_chief_in_words(config), watchdog.SECONDS_TO_CONNECT):
            roll_call.answer(config)


def _waiting_for_others(caller):
    """Returns the scope of a call, which has a limit of its own."""
    return waits.Wait('the other workers', 0, details=lambda: f'No answer came from {", ".join(caller.missing())}.')


def _chief_in_words(config):
    return f'worker:0 ({config.jobs["worker"][0]}) to call {config.task}'


def _call(params, config, files, patience):
    batch_size = params.input.batch_size

    def waiting_for_files():
        return waits.for_files(f'log directory {files.path}', params.train.checkpoint_timeout_seconds)

    with waiting_for_files():
        files.create()
        record = files.read_left_out()
    left_out = [int(name.partition(':')[2]) for name in record[0]] if record else []
    caller = roll_call.Caller(config, lambda count: batch_size % count == 0)
    with _waiting_for_others(caller):
        members = caller.call(patience if record else math.inf, left_out)
    with waiting_for_files():
        files.write_left_out([name.partition(' ')[0] for name in caller.absent()])
    names = ', '.join(f'worker:{index}' for index in caller.members)
    if caller.absent():
        without = f'{", ".join(caller.silent)} did not answer for {patience:g} s (--replace_after_seconds): '
        print(f'{without if caller.silent else ""}training continues over {names}, each with '
              f'{batch_size // len(caller.members)} rows of a batch. A worker that answers again takes part from the '
              'next checkpoint on.', flush=True)
    elif left_out:
        print(f'All workers answer again: training continues over {names}.', flush=True)
    caller.watch()
    return members, worker_training.Elastic(caller.is_worker_back, handed_over_state.HandedOverState())
