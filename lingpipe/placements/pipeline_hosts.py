"""One pipeline whose stages are on this machine, or on the machines of a cluster: `--cluster=pipeline`."""

import copy
import functools
import math
from typing import Any

import tensorflow as tf

from lingpipe.cluster import answers, cluster_config
from lingpipe.devices import device_kinds
from lingpipe.pipeline import validation
from lingpipe.planner import resolution
from lingpipe.private_api import eager_context
from lingpipe.training import experiment, planning

_SECONDS_TO_RECONNECT = 60  # some hundred milliseconds are usual


def set_up_here(body_params: Any, kind: Any) -> tuple[int, bool]:
    """Set up devices before TensorFlow does anything else; return their number, and whether they are virtual CPUs.

    Args:
        kind: 'CPU' or 'GPU'; None takes the best kind that this machine has.
    """
    resolution.validate(body_params)
    device_kinds.configure_graph_optimizer()
    on_cpu = kind == 'CPU' or kind is None and not device_kinds.has('GPU', 'TPU')
    numbers = body_params.num_partitions, body_params.num_replicas
    num_devices = planning.num_local_devices(on_cpu) if 'auto' in numbers else math.prod(numbers)
    if on_cpu:
        device_kinds.use_virtual_devices(num_devices)
    return num_devices, on_cpu


def place_here(params: Any, kind: Any = None) -> tuple[Any, experiment.Placement]:
    """Return an experiment's params with numbers instead of 'auto', and its `Placement` here; see `set_up_here`."""
    return _placed(params, *set_up_here(params.task.body, kind), kind)


def _placed(params, num_devices, on_cpu, kind):
    params = planning.resolved(params, num_devices, on_cpu)
    body = params.task.body
    if body.devices is not None:
        validation.require_device_names(body.devices)
    return params, experiment.Placement(
        body.devices or device_kinds.stage_devices(body.num_replicas * body.num_partitions, kind))


def connect_hosts(config: cluster_config.ClusterConfig) -> None:
    """Make the devices of all workers available to this program, the chief, whose stages then use these only.

    Workers are clients of each other, and of the chief, from which they fetch the input::

        chief     builds the step, reads the input, writes checkpoints and curves
          │
          ├──> worker 0   server: stage 0 ──┐
          │                                 v  boundary tensors go from worker to worker
          └──> worker 1   server: stage 1

    Raises:
        ConnectionError: workers cannot be reached.
        RuntimeError: the port of this chief stays taken.
    """
    answers.check_port(config)
    # The chief has no stages, but TensorFlow would take the memory of its GPUs.
    tf.config.set_visible_devices([], 'GPU')
    wait_for_all(config)
    try:
        with answers.connecting(config):
            tf.config.experimental_connect_to_cluster(_cluster_of(config), job_name='chief', task_index=0)
            tf.config.list_logical_devices()  # connects
    except tf.errors.OpError as error:
        raise ConnectionError(
            f'The workers {config.in_words(config.tasks("worker"))} answer, but no cluster came of it '
            f'({str(error).splitlines()[0]}). Check that each runs this version of TensorFlow and LingPipe with the '
            'same addresses, and start them again.') from error
    device_kinds.use_processes('/job:worker/')


def wait_for_all(config: cluster_config.ClusterConfig) -> None:
    """Wait until all workers answer; raise ConnectionError as `answers.await_workers` does."""
    answers.await_workers(config, functools.partial(answers.silent_tasks, config))


def reconnect(config: cluster_config.ClusterConfig) -> None:
    """Connect the chief again, after the list of workers has changed.

    TensorFlow's public function would start a second server at the chief's port. Data on the devices of workers that
    remain can still be read. TensorFlow first waits for running operations, which may never end if they were streamed
    to a lost worker; it also waits if another worker is lost during the call. If the wait takes 60 seconds, the process
    ends, to be started again.
    """
    definition = copy.deepcopy(eager_context.get_server_def())
    definition.cluster.CopyFrom(_cluster_of(config).as_cluster_def())
    leader = tf.DeviceSpec.from_string(cluster_config.device_of(config.tasks('worker')[0])).replace(replica=0)
    definition.default_session_config.experimental.collective_group_leader = leader.to_string()
    with answers.connecting(config, _SECONDS_TO_RECONNECT):
        eager_context.update_server_def(definition)


def _cluster_of(config):
    workers = {int(name.partition(':')[2]): config.address_of(name) for name in config.tasks('worker')}
    return tf.train.ClusterSpec({'chief': config.jobs['chief'], 'worker': workers})


def place(params: Any, config: Any, kind: Any = None) -> tuple[Any, experiment.Placement]:
    """Connect the chief with all workers; return params with numbers instead of 'auto', and the `Placement` on workers.

    See `set_up_here` for `kind`, and `connect` for errors.
    """
    resolution.validate(params.task.body)
    device_kinds.configure_graph_optimizer()
    device_kinds.use_virtual_devices(1)
    connect_hosts(config)
    return _placed(params, device_kinds.num_devices(), True, kind)
