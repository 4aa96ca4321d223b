"""Training with parameter servers: what an error means."""

import contextlib

import tensorflow as tf

from lingpipe.training import errors, trainer

_OF_OTHERS = (tf.errors.UnavailableError, tf.errors.CancelledError, tf.errors.AbortedError, tf.errors.DeadlineExceededError)


def train(params, evaluation_inputs, logdir, servers, started=None):
    """Trains up to the last step, or until a signal asks to stop.

    Args:
        params: as `trainer.Trainer` takes them.
        evaluation_inputs: likewise.
        logdir: folder of the run, on the chief's disk.
        servers: the `ParameterServers`, with devices.
        started: `time.time()` at the start of the program.

    Raises:
        LostWorkerError: a server was lost, or all workers.
        TrainingError, ValueError: as `trainer.Trainer`.
    """
    with losses_in_words(servers):
        trainer.Trainer(params, evaluation_inputs, logdir, servers, started).run()


@contextlib.contextmanager
def losses_in_words(servers):
    """Says what an error means that comes of the end of another process."""
    try:
        yield
    except _OF_OTHERS as error:
        silent = servers.silent_tasks()
        raise errors.LostWorkerError(
            f'{", ".join(silent) if silent else "A parameter server"} was lost, and with a server its part of the weights '
            f'({errors.cause(error)}). Start what has died again and run the same command, or give all --max_restarts: training goes '
            'on from its newest checkpoint.') from error
