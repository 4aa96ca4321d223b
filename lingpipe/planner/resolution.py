"""From params to a plan, and back: numbers in the place of every 'auto'."""

import functools

import keras
import tensorflow as tf

from lingpipe.pipeline import layer_profile, validation
from lingpipe.planner import accelerators, layer_stack, search
from lingpipe.planner import plan as plans

_FIELDS = ('num_partitions', 'num_micro_batches', 'recompute', 'num_replicas')
_DEFAULT_MOST_PARTITIONS = 1024


def is_open(p):
    """Says whether a field of `GPipeLayer.Params()` is 'auto'."""
    return any(p.Get(field) == search.AUTO for field in _FIELDS)


def resolved(p, plan):
    """Returns a copy of `GPipeLayer.Params()` with what a plan has chosen.

    Args:
        p: `GPipeLayer.Params()`.
        plan: `Plan`.
    """
    p = p.Copy().Set(num_partitions=plan.schedule.num_devices, num_micro_batches=plan.schedule.num_micro_batches,
                     recompute=plan.recompute)
    if plan.is_cut_by_memory:
        p.partition_by = plan.ends
    return p


def make_setting(p, input_specs, accelerator=None, memory_limit=None, num_slots=2, profile_device=None):
    """Finds out what all plans of a model have in common.

    Args:
        p: `GPipeLayer.Params()`, perhaps with 'auto'.
        input_specs: nest of `tf.TensorSpec` `[batch, ...]` of the input of all replicas, every dimension known.
        accelerator: `Accelerator`; None: a processor core.
        memory_limit: bytes of a device; None: that of `p`, of the accelerator, or none.
        num_slots: tensors that the optimizer keeps for each weight.
        profile_device: name of the device on which layers are measured where `p.partition_by` is 'time'; None: not measured.

    Returns:
        `Setting`.
    """
    batch_size = -(-_batch_size(input_specs) // p.num_replicas)
    input_specs = tf.nest.map_structure(lambda spec: tf.TensorSpec([batch_size, *spec.shape[1:]], spec.dtype), input_specs)
    counts = search.choices(p, len(p.layers), batch_size, 1).num_micro_batches
    stack = layer_stack.LayerStack(p.layers, input_specs, [-(-batch_size // count) for count in counts], p.dtype_policy)
    limit = memory_limit or p.memory_limit or (accelerator and accelerator.memory) or None
    times = functools.partial(_measured_times, p, stack, profile_device) if p.partition_by == 'time' and profile_device else None
    policy = keras.DTypePolicy(p.dtype_policy) if p.dtype_policy else keras.config.dtype_policy()
    return plans.Setting(stack, accelerator or accelerators.CPU, limit, num_slots / p.num_replicas, policy.compute_dtype, times,
                         p.num_replicas)


def find_plan(setting, p, most_partitions=None):
    """Returns the fastest plan that fits, among those that the params leave open.

    Args:
        setting: `Setting`.
        p: `GPipeLayer.Params()`, perhaps with 'auto'.
        most_partitions: how many devices there are; None: as many as needed, and the fewest on which the model fits.

    Returns:
        `Plan`; where none fits, the one that needs the least.

    Raises:
        ValueError: a field of `p` is wrong, or nothing is possible.
    """
    if p.num_partitions == search.AUTO and most_partitions is None:
        fewest = search.fewest_devices(setting, p, _DEFAULT_MOST_PARTITIONS)
        if fewest:
            return fewest
    candidates = list(search.all_plans(setting, p, search.choices(
        p, len(setting.stack), setting.stack.batch_size, most_partitions or _DEFAULT_MOST_PARTITIONS)))
    if not candidates:
        raise ValueError(
            f"schedule={p.schedule!r} does not go with any of the numbers of partitions and micro-batches that 'auto' tries. Set "
            'num_partitions and num_micro_batches to numbers.')
    return search.best(candidates)


def validate(p):
    """Raises ValueError as `GPipeLayer` would, but for fields that are 'auto'."""
    defaults = {'num_partitions': 1, 'num_micro_batches': 1, 'recompute': 'stage', 'num_replicas': 1}
    open_fields = {field: value for field, value in defaults.items() if p.Get(field) == search.AUTO}
    validation.validate_gpipe_params(p.Copy().Set(devices=None, **open_fields), len(p.layers))


def _measured_times(p, stack, device, micro_batch_size):
    return layer_profile.profile_layers(
        stack.layer_params, stack.micro_batch_specs(micro_batch_size), device, p.profile_dir, stack.analyses)


def _batch_size(input_specs):
    specs = tf.nest.flatten(input_specs)
    if not all(spec.shape.is_fully_defined() for spec in specs):
        raise ValueError(f'A plan needs every size of the input, the batch size included, and got '
                         f'{[tuple(spec.shape) for spec in specs]}. Give tf.TensorSpec([batch, ...], dtype).')
    return specs[0].shape[0]
