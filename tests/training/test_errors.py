import functools

import pytest
import tensorflow as tf

from lingpipe.pipeline import gpipe_layer
from lingpipe.training import errors


def fails_in_a_function():
    tf.function(fails_in_python, autograph=False)()


def fails_in_python():
    def fail():
        raise KeyError('no entry')

    return tf.numpy_function(fail, [], tf.float32)


def fails_on_one_of_several_devices():
    @tf.function(autograph=False)
    def step(x):
        with tf.device('CPU:1'), tf.control_dependencies([tf.debugging.Assert(x < 0, ['too large'])]):
            y = x + 1
        with tf.device('CPU:2'):
            return y * x

    step(tf.constant(1))


def needs_more_memory_than_there_is():
    tf.fill([2**58], 0.0)


@functools.cache  # TensorFlow waits ten seconds for memory
def failure(function):
    with pytest.raises(tf.errors.OpError) as caught:
        function()
    return caught.value


@pytest.mark.parametrize('function, expected', [
    (fails_in_a_function, "KeyError: 'no entry'"),
    (fails_on_one_of_several_devices, 'assertion failed: [too large]')])
def test_the_cause_is_one_line_without_what_surrounds_it(function, expected):
    assert errors.cause(failure(function)) == expected


def words(error, **body):
    return errors.in_words(error, gpipe_layer.GPipeLayer.Params().Set(num_partitions=3, num_micro_batches=8, **body))


@pytest.mark.parametrize('recompute, advice', [
    ('none', "set task.body.recompute='stage' (now 'none'), "), ('stage',
        "set task.body.recompute='layer' (now 'stage'), "),
    ('selective', "set task.body.recompute='stage' (now 'selective'), "),
    ('layer', '')])
def test_too_little_memory_comes_with_what_can_still_be_done(recompute, advice):
    told = words(failure(needs_more_memory_than_there_is), recompute=recompute)
    assert told.startswith('A device ran out of memory (OOM when allocating tensor with shape[')
    assert told.endswith(f'). Raise task.body.num_micro_batches (now 8), {advice}raise task.body.num_partitions (now '
                         '3), or lower input.batch_size.')


_OF_A_WORKER = """Graph execution error:

Socket closed
Additional GRPC error information from remote target /job:worker/replica:0/task:1/device:CPU:0 while calling /tensorflow.eager.EagerService/RunComponentFunction:
:UNKNOWN:Error received from peer  {grpc_status:14, grpc_message:"Socket closed"} [Op:__inference__steps_2478]"""


@pytest.mark.parametrize('error, beginning', [
    (tf.errors.ResourceExhaustedError(None, None, '/data/cache; No space left on device'),
     'The disk is full (/data/cache; No space left on device). Free some space, then run the same command again.'),
    (tf.errors.CancelledError(None, None, 'RecvAsync is cancelled.'),
     'A device failed in the middle of a step; the lines above that begin with W say why'),
    (tf.errors.UnavailableError(None, None, f'/job:chief/replica:0/task:0/device:CPU:0 {_OF_A_WORKER}'),
     'Worker 1 was lost in the middle of a step'),
    (tf.errors.UnknownError(None, None, "KeyError: 'no entry'"),
     "TensorFlow stopped with UnknownError: KeyError: 'no entry'. If the cause lies outside, "),
    (tf.errors.UnavailableError(None, None, _OF_A_WORKER),
     'Worker 1 was lost in the middle of a step (Socket closed). Restart it')])
def test_an_error_is_reported_by_its_cause_with_what_to_do(error, beginning):
    assert words(error).startswith(beginning)


@pytest.mark.parametrize('error, is_lost', [
    (tf.errors.UnavailableError(None, None, _OF_A_WORKER), True), (tf.errors.AbortedError(None, None, 'x'), True), (tf.errors.DeadlineExceededError(None, None, 'x'), True),
    (tf.errors.InvalidArgumentError(None, None, 'Unable to find a context_id matching the specified one (7)'), True),
    (tf.errors.InternalError(None, None, 'Unable to parse request'), True), (tf.errors.InternalError(None, None, 'x'), False),
    (tf.errors.InvalidArgumentError(None, None, 'a shape'), False),
    (tf.errors.ResourceExhaustedError(None, None, 'x'), False)])
def test_only_what_a_restart_can_mend_counts_as_a_lost_machine(error, is_lost):
    assert errors.is_lost_machine(error) == is_lost
