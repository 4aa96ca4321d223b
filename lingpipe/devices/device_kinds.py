"""What each kind of device requires of graphs, and the devices of this machine."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from absl import logging

from lingpipe import hyperparams
from lingpipe.private_api import eager_context

LOGICAL_CORE = 'TPU_REPLICATED_CORE'

_process = ''  # prefix of the names of the devices to choose from, if a program sees those of other processes
_ACCELERATORS = ('TPU', 'GPU')


def must_compile(device: str) -> bool:
    """Return whether XLA must compile everything on a device."""
    return kind_of(device) == 'TPU'  # a TPU has no kernels for single operations


def is_logical_core(device: str) -> bool:
    """Return whether a device is a core of a `tf.distribute.TPUStrategy`."""
    return kind_of(device) == LOGICAL_CORE  # there XLA compiles a step as one program


def has_static_shapes_only(device: str) -> bool:
    """Return whether a device's programs need shapes that are known in advance."""
    return must_compile(device) or is_logical_core(device)


def for_single_operations(device: str) -> str:
    """Return `device`, or for a TPU, which cannot run single operations, the CPU of its machine."""
    return host_of(device) if must_compile(device) else device


@functools.lru_cache
def host_of(device: str) -> str:
    """Return the CPU of the machine that a device belongs to."""
    return tf.DeviceSpec.from_string(device).replace(device_type='CPU', device_index=0).to_string()


def kind_of(device: str | None) -> str | None:
    """Return a device's type, such as 'GPU', or None if the name has no type."""
    try:
        return tf.DeviceSpec.from_string(device or '').device_type
    except ValueError:
        return None


def one_call(device: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `function` for calls on `device`. A `tf.function` adds only one operation per call to a graph.

    ::

        CPU, GPU            `tf.function`
        TPU                 `tf.function` with `jit_compile=True`
        logical core        `function` itself, not wrapped
    """
    if is_logical_core(device):
        return function  # inside a call, the operations would have no core
    return tf.function(function, autograph=False, jit_compile=must_compile(device) or None,
                       experimental_attributes={'_noinline': True})  # keeps a step's graph small


def call(device: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a small function on `device`. If `device` is a TPU, XLA compiles the function."""
    with tf.device(device):
        return operations(device, function)(*arguments)


def operations(device: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function`, or if `device` is a TPU, `function` compiled by XLA."""
    return one_call(device, function) if must_compile(device) else function


def rest_on_host(device: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function`, or if `device` is a TPU, a wrapper that runs it on the CPU of the TPU's machine."""
    if not must_compile(device):
        return function

    def on_host(*arguments: Any) -> Any:
        with tf.device(for_single_operations(device)):  # a `tf.device` inside the function wins
            return function(*arguments)

    return on_host


def use_virtual_devices(num_devices: int) -> None:
    """Split the CPU into virtual devices for pipelines. Call this before TensorFlow or Keras does anything.

    Each operation then uses one thread of a pool that all devices share.
    """
    try:
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(max(2, num_devices))
        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices('CPU')[0], [tf.config.LogicalDeviceConfiguration()] * num_devices)
    except RuntimeError:
        logging.warning(
            'use_virtual_devices(%d) came too late: TensorFlow has already set its devices up and keeps its %d. '
            'Call it at the start of the program, before any Keras model, tensor or variable.',
            num_devices, len(tf.config.list_logical_devices('CPU')))


def configure_graph_optimizer() -> None:
    """Switch off the optimisation of graphs outside the stages, for the whole process."""
    # Optimising costs seconds and gains nothing: the graph of a step has one call per action, and one per device for
    # the update. The functions of stages are still optimised, see `graph_pieces.py`.
    tf.config.optimizer.set_experimental_options({'disable_meta_optimizer': True})


@contextlib.contextmanager
def without_graph_optimizer() -> Iterator[None]:
    """Skip the graph optimizer for functions that this thread calls in the `with` block."""
    context = eager_context.context()
    options = context.function_call_options
    config = tf.compat.v1.ConfigProto.FromString(options.config_proto_serialized)
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    context.function_call_options = eager_context.FunctionCallOptions(options.executor_type, config)
    try:
        yield
    finally:
        context.function_call_options = options


def has(*kinds: str) -> bool:
    """Return whether this machine has a device of one of `kinds`, without setting up devices."""
    return any(tf.config.list_physical_devices(kind) for kind in kinds)


def stage_devices(num_stages: int, kind: str | None = None) -> list[str]:
    """Choose a device for each stage. If there are too few devices, stages share devices.

    Args:
        kind: 'CPU', 'GPU' or 'TPU'; None: accelerators if there are any, else virtual CPUs.

    Raises:
        ValueError: there is no device of this kind.
    """
    devices = _devices(kind)
    if not devices:
        others = {device.device_type for device in tf.config.list_logical_devices() if device.name.startswith(_process)}
        raise ValueError(
            f'No device of kind {kind!r} was found on {"the workers" if _process else "this machine"}. Choose one of '
            f'{sorted(others)}.')
    if len(devices) < num_stages:
        logging.warning(
            'Stages share devices and will not overlap: there are %d stages, and the devices are %s. Use fewer '
            'partitions, add workers, or on CPUs call lingpipe.use_virtual_devices(%d) at the start of the program.',
            num_stages, ', '.join(devices), num_stages)
    return [devices[stage % len(devices)] for stage in range(num_stages)]


def _devices(kind: str | None = None) -> list[str]:
    """Return the names of all devices of `kind`, by default of the best kind."""
    found = [[device.name for device in tf.config.list_logical_devices(kind) if device.name.startswith(_process)]
             for kind in ([kind] if kind else [*_ACCELERATORS, 'CPU'])]
    return next(filter(None, found), [])


def num_devices() -> int:
    """Return the number of accelerators, or of virtual CPUs if there are none."""
    return len(_devices())


def use_processes(prefix: str) -> None:
    """Restrict later choices of devices to names with a prefix, such as '/job:worker/' for all workers."""
    global _process
    _process = prefix


def device_grid(body_params: hyperparams.Params) -> list[list[str]]:
    """Return device names in `num_replicas` rows and `num_partitions` columns. Neither number may be 'auto'."""
    p = body_params
    devices = p.devices or stage_devices(p.num_replicas * p.num_partitions)
    return [devices[start:start + p.num_partitions] for start in range(0, len(devices), p.num_partitions)]
