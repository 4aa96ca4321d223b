"""Errors that a user can fix. The user sees a message without a stack trace."""

import re
from typing import Any

import tensorflow as tf

from lingpipe import hyperparams
from lingpipe.cluster import waits

EXIT_TRY_AGAIN = waits.TRY_AGAIN
_NO_SPACE = ('No space left on device', 'Disk quota exceeded')
_TOO_MANY_BAD_RECORDS = 'max_bad_records: '
_REMOTE_TASK = re.compile(r'/job:(\w+)/replica:\d+/task:(\d+)')
_LOST = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.DeadlineExceededError)
_OF_LOST = (
    'Unable to find a context_id matching',  # a restarted worker, which does not know this program
    'Unable to parse request')  # gRPC's words for a request that was cut off with its connection
_LESS_MEMORY = {'none': 'stage', 'selective': 'stage', 'stage': 'layer'}


class TrainingError(Exception):
    """Error with a cause outside the program. The message says what happened and what to do."""


class DamagedCheckpointError(TrainingError):
    """Raised if a checkpoint cannot be read. `reason` says why."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f'Checkpoint {path} cannot be read ({reason}). Choose another one; nothing was changed.')
        self.path, self.reason = path, reason


class LostWorkerError(TrainingError):
    """Raised if another process or a device was lost. If the user runs the same command again, training resumes."""


class WorkerIsBackError(LostWorkerError):
    """Raised if a lost worker answers again. Training resumes with this worker from the newest checkpoint."""


def exit_code(error: Any) -> Any:
    """Return the exit code EXIT_TRY_AGAIN if a restart can help after an error, else 1."""
    while error is not None:
        if isinstance(error, (LostWorkerError, ConnectionError)) or is_lost_machine(error):
            return EXIT_TRY_AGAIN
        error = error.__cause__
    return 1


def cause(error: Any) -> str:
    """Return the cause of a TensorFlow error as one line."""
    text = re.sub(r'\{\{.*?\}\}|\[Op:.*?\]( name:)?|/job:(localhost|chief)/replica:0/task:0/device:', '', str(error))
    # If a graph fails on several devices, TensorFlow numbers the causes: (0), (1), ...
    root = re.search(r'grpc_message:"(.+?)"', text) or re.search(r'^ *\(0\) [A-Z_]+: *(.+)', text, re.MULTILINE)
    lines = [line.strip() for line in text.strip().splitlines()]
    if root:
        lines = [root[1]]
    elif lines and lines[0] == 'Graph execution error:':  # says where the graph was built, before the cause
        operation = next((number for number, line in enumerate(lines) if line.startswith('[[')), len(lines))
        lines = [line for line in lines[:operation] if line][-1:]
    return lines[0].strip().rstrip('.') if lines else type(error).__name__


def in_words(error: tf.errors.OpError, body_params: hyperparams.Params) -> str:
    """Return what an error of TensorFlow means for the user, and what to do."""
    told = cause(error)
    if any(words in told for words in _NO_SPACE):
        return f'The disk is full ({told}). Free some space, then run the same command again.'
    if _TOO_MANY_BAD_RECORDS in told:
        return of_input(error)
    if isinstance(error, tf.errors.ResourceExhaustedError):
        return f'A device ran out of memory ({told}). {_save_memory(body_params)}'
    if is_lost_machine(error):
        return (f'{machine(error)} was lost in the middle of a step ({told}). Restart it, unless something else does, '
                'and run the same command here again.')
    if isinstance(error, tf.errors.CancelledError):  # one partition failed; often only the others' errors are reported
        return ('A device failed in the middle of a step; the lines above that begin with W say why (if there are '
                'none, give --verbosity=1 and run again). If it ran out of memory: '
                f'{_save_memory(body_params)}')
    return (f'TensorFlow stopped with {type(error).__name__}: {told}. If the cause lies outside, such as a machine '
            'that was lost, run the same command again.')


def of_input(error: tf.errors.OpError) -> str:
    """Return why the input pipeline failed, and what to do."""
    told = cause(error)
    if _TOO_MANY_BAD_RECORDS in told:
        return told[told.index(_TOO_MANY_BAD_RECORDS):].rstrip("']\"")
    return f'{told}. Repair it, then run the same command again.'


def is_lost_machine(error: Any) -> bool:
    """Return whether an error means that another machine was lost."""
    return isinstance(error, _LOST) or any(words in str(error) for words in _OF_LOST)


def machine(error: BaseException) -> str:
    """Return the machine that an error is about, such as 'Worker 1'. Return 'Another machine' if unknown."""
    text = str(error)
    task = _REMOTE_TASK.search(text, max(text.find('remote target'), 0))  # earlier text names devices of this machine
    return f'{task[1].capitalize()} {task[2]}' if task else 'Another machine'


def _save_memory(body_params: hyperparams.Params) -> str:
    p = body_params
    less = _LESS_MEMORY.get(p.recompute)
    recompute = f"set task.body.recompute='{less}' (now '{p.recompute}'), " if less else ''
    return (f'Raise task.body.num_micro_batches (now {p.num_micro_batches}), {recompute}'
            f'raise task.body.num_partitions (now {p.num_partitions}), or lower input.batch_size.')
