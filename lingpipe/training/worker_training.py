"""Training with all workers of a cluster: who does what, and what an error means."""

import contextlib

import tensorflow as tf

from lingpipe.training import errors, follower, trainer

_OF_OTHERS = (tf.errors.UnavailableError, tf.errors.CancelledError, tf.errors.AbortedError, tf.errors.DeadlineExceededError)


def train(params, evaluation_inputs, logdir, workers, started=None):
    """Trains up to the last step, or until a signal asks any of the workers to stop.

    Args:
        params: as `trainer.Trainer` takes them, the same on all workers.
        evaluation_inputs: likewise.
        logdir: folder of the run, which only the chief reads and writes.
        workers: the `Workers`, with devices.
        started: `time.time()` at the start of the program.

    Raises:
        ValueError: params cannot work, or differ between workers.
        LostWorkerError: another worker died or hangs.
        TrainingError: as `trainer.Trainer`.
    """
    with losses_in_words():
        workers.check_same(params.ToText() + str([tf.DeviceSpec.from_string(name).device_type for name in workers.devices]))
        _refuse_measured_times(params.task.body)
        if workers.is_chief:
            trainer.Trainer(params, evaluation_inputs, logdir, workers, started).run()
        else:
            follower.Follower(params, workers).run()
        workers.leave()


@contextlib.contextmanager
def losses_in_words():
    """Says what an error means that comes of another worker's end."""
    try:
        yield
    except _OF_OTHERS as error:
        raise errors.LostWorkerError(
            f'Another worker was lost, or a device of this one failed ({errors.cause(error)}). All workers stop. Start the same '
            'command on all of them again, or give them --max_restarts: training goes on from its newest checkpoint.') from error


def _refuse_measured_times(body_params):
    if body_params.partition_by == 'time':
        raise ValueError(
            "task.body.partition_by='time' measures layers on each worker, which may then cut the model differently. Set it to "
            "'flops', or to the list of end indices that --mode=inspect_model shows on one machine.")
