"""Which program trains with parameter servers."""

from lingpipe.placements import parameter_servers
from lingpipe.training import asynchronous_program, synchronous_program

_PROGRAMS = {
    parameter_servers.ASYNCHRONOUS: asynchronous_program.AsynchronousProgram,
    parameter_servers.SYNCHRONOUS: synchronous_program.SynchronousProgram}


def make(task, train_params, servers, batch_spec):
    """Returns the `ServerProgram` for `servers.update`.

    Args:
        task: a `BaseTask` whose body is built inside `servers.creating()`.
        train_params: the Params of training.
        servers: the `ParameterServers`.
        batch_spec: nest of `tf.TensorSpec` `[batch, ...]` of a training batch.
    """
    return _PROGRAMS[servers.update](task, train_params, servers, batch_spec)
