"""The devices of this machine, and which of them the stages of a pipeline go to."""

import tensorflow as tf
from absl import logging

_ACCELERATORS = ('TPU', 'GPU')


def use_virtual_devices(num_devices):
    """Splits the CPU into devices to try pipelines on; call it before TensorFlow or Keras has done anything else.

    Each virtual device does its work on one thread, so that devices run side by side as accelerators would.

    Args:
        num_devices: number of virtual CPU devices.
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


def configure_graph_optimizer():
    """Switches off the optimisation of graphs outside of the stages, which costs start-up seconds and gains nothing.

    The graph of a step is one call an action and one a device's update: there is nothing to optimise. What stages compute is
    optimised all the same, as `graph_pieces.py` says. The switch holds for the whole process.
    """
    tf.config.optimizer.set_experimental_options({'disable_meta_optimizer': True})


def has_accelerators():
    """Says whether this machine has a GPU or TPU; asking does not set the devices up."""
    return any(tf.config.list_physical_devices(kind) for kind in _ACCELERATORS)


def has_tpu():
    """Says whether this machine has a TPU; asking does not set the devices up."""
    return bool(tf.config.list_physical_devices('TPU'))


def stage_devices(num_stages, kind=None, process=''):
    """Chooses a device for each stage: accelerators if there are any, else virtual CPUs.

    Args:
        num_stages: K, the number of stages.
        kind: 'CPU', 'GPU' or 'TPU'; None takes the best kind that this machine has.
        process: begin of the names of the devices to choose from, for a process that sees those of others too.

    Returns:
        List of K device names. With fewer devices than stages some share one, and a warning says so.
    """
    kinds = [kind] if kind else [*_ACCELERATORS, 'CPU']
    found = [[device.name for device in tf.config.list_logical_devices(name) if device.name.startswith(process)]
             for name in kinds]
    devices = next((names for names in found if names), [])
    if not devices:
        others = {device.device_type for device in tf.config.list_logical_devices() if device.name.startswith(process)}
        raise ValueError(
            f'No device of kind {kind!r} was found on {"the workers" if process else "this machine"}. Choose one of {sorted(others)}.')
    if len(devices) < num_stages:
        advice = 'Add workers' if process else f'Call lingpipe.use_virtual_devices({num_stages}) at the start of the program'
        logging.warning(
            '%d stages, but only %d devices were found (%s): stages share devices and will not overlap. %s, or use fewer partitions.',
            num_stages, len(devices), ', '.join(devices), advice)
    return [devices[stage % len(devices)] for stage in range(num_stages)]


def device_grid(body_params):
    """Returns the device grid of a pipeline: a list of R rows of K device names.

    Args:
        body_params: `GPipeLayer.Params()` with its numbers resolved.
    """
    p = body_params
    devices = p.devices or stage_devices(p.num_replicas * p.num_partitions)
    return [devices[start:start + p.num_partitions] for start in range(0, len(devices), p.num_partitions)]
