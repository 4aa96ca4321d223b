"""Which device does the work of each partition in each replica."""

from lingpipe.distribute import local_devices


def make(body_params):
    """Returns the device grid of a pipeline: a list of R rows of K device names.

    Args:
        body_params: `GPipeLayer.Params()` with its numbers resolved.
    """
    p = body_params
    devices = p.devices or local_devices.stage_devices(p.num_replicas * p.num_partitions)
    return [devices[start:start + p.num_partitions] for start in range(0, len(devices), p.num_partitions)]
