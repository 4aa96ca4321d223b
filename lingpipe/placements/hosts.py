"""One pipeline whose stages are on the machines of a cluster."""

from lingpipe.cluster import remote_devices
from lingpipe.devices import local_devices
from lingpipe.planner import resolution
from lingpipe.training import placement, planning


def place(params, config, kind=None):
    """Connects the chief with all workers, and places the partitions of an experiment on their devices.

    Args:
        params: the experiment's Params.
        config: `ClusterConfig` of the chief.
        kind: 'CPU' or 'GPU'; None takes the best kind that the workers have.

    Returns:
        Params with numbers in the place of 'auto', and the `Placement`.

    Raises:
        ValueError: params cannot work.
        ConnectionError: workers cannot be reached.
    """
    resolution.validate(params.task.body)
    local_devices.configure_graph_optimizer()
    local_devices.use_virtual_devices(1)
    remote_devices.connect(config)
    params = planning.resolved(params, remote_devices.count(), on_cpu=True)
    body = params.task.body
    return params, placement.Placement(body.devices or local_devices.stage_devices(
        body.num_replicas * body.num_partitions, kind, remote_devices.PROCESSES))
