"""Placement on this machine: its devices are found, a lone CPU is split, and each partition gets a device."""

import math
from typing import Any

from lingpipe.devices import device_kinds
from lingpipe.planner import resolution
from lingpipe.training import placement, planning


def set_up(body_params: Any, kind: Any) -> tuple:
    """Set up devices before TensorFlow does anything else; without accelerators they are virtual CPU devices.

    Args:
        body_params: `GPipeLayer.Params()`, in which numbers may be 'auto'.
        kind: 'CPU' or 'GPU'; None takes the best kind that this machine has.

    Returns:
        The number of devices, and whether they are CPUs.
    """
    resolution.validate(body_params)
    device_kinds.configure_graph_optimizer()
    on_cpu = kind == 'CPU' or kind is None and not device_kinds.has_accelerators()
    numbers = body_params.num_partitions, body_params.num_replicas
    num_devices = planning.num_local_devices(on_cpu) if 'auto' in numbers else math.prod(numbers)
    if on_cpu:
        device_kinds.use_virtual_devices(num_devices)
    return num_devices, on_cpu


def place(params: Any, kind: Any = None) -> Any:
    """Return an experiment's params with numbers instead of 'auto', and its `Placement` here; as `set_up`."""
    params = planning.resolved(params, *set_up(params.task.body, kind))
    body = params.task.body
    return params, placement.Placement(
        body.devices or device_kinds.stage_devices(body.num_replicas * body.num_partitions, kind))
