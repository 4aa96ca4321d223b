"""Checks of a pipeline's params and batches."""

from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf

from lingpipe import hyperparams, schedules, wording
from lingpipe.devices import collectives, device_kinds, variable_placement
from lingpipe.partition import exact_cut

_CHOICES = {
    'recompute': ['auto', 'none', 'selective', 'stage', 'layer'],
    'partition_by': ['flops', 'time', 'params'],
    'gradient_sum': list(collectives.METHODS),
    'added_losses': ['exact', 'averaged'],
    'tpu_route': ['auto', 'spmd', 'stage_programs', 'logical_cores'],
}
_COUNTS = 'num_partitions', 'num_micro_batches', 'num_virtual_stages', 'num_replicas'
_OPTIONAL = {  # the least value, and what the field is
    'memory_limit': (1, 'a number of bytes that a device may hold, as 16e9'),
    'batch_size': (1, 'the number of rows of a training batch'),
    'num_optimizer_slots': (0, 'the tensors that the optimizer keeps for each weight, as 2 for Adam')}
_MIXING_LAYERS = keras.layers.MixUp, keras.layers.CutMix  # each example gets parts of another one in training
_LAYERS_WITH_NOISE_SHAPE = keras.layers.Dropout, keras.layers.AlphaDropout


def validate_gpipe_params(p: hyperparams.Params, num_layers: int | None) -> None:
    """Raise ValueError if a field of GPipeLayer's params cannot work. `num_layers` is None if unknown."""
    if num_layers == 0:
        raise ValueError('layers=[] gives GPipeLayer nothing to run: set it to a list of layer params, or model to the '
                         'params of a Keras model.')
    for field in _COUNTS:
        _check_number(field, p.Get(field), 1, 'it must be an integer of 1 or more; lingpipe.plan finds one')
    for field, (least, words) in _OPTIONAL.items():
        if p.Get(field) is not None:
            _check_number(field, p.Get(field), least, f'it is {words}, or None')
    for field, choices in _CHOICES.items():
        _check_choice(field, p.Get(field), choices)
    schedule = make_schedule(p)
    if num_layers is not None:
        _check_layers(p, num_layers, schedule)
    if schedule.splits_backward and p.recompute == 'layer':
        raise ValueError(
            f"recompute='layer' does not go with schedule={schedule.name!r}, which splits the backward pass of a whole "
            "partition. Set recompute='stage' or 'none'.")
    if p.devices is not None:
        _check_devices(p.devices, p.num_partitions, p.num_replicas)


def _check_number(field: str, value: Any, least: int, what_is_allowed: str) -> None:
    kinds = (int, float) if field == 'memory_limit' else int
    if not isinstance(value, kinds) or isinstance(value, bool) or not value >= least:
        raise ValueError(f'{field}={value!r} is not possible: {what_is_allowed}. Set it to {least} or more.')


def check_cut(partition_by: Any, num_layers: int, num_stages: int) -> None:
    """Raise ValueError if a list of end indices does not cut `num_layers` layers into `num_stages` stages."""
    if not isinstance(partition_by, str):
        exact_cut.validate_partition_ends(partition_by, num_layers, num_stages)


def make_schedule(p: hyperparams.Params) -> schedules.Schedule:
    """Return the `Schedule` that GPipeLayer's params describe.

    Raises:
        ValueError: the schedule is unknown, or does not fit the numbers of partitions and micro-batches.
    """
    return schedules.make_schedule(p.schedule, p.num_partitions, p.num_micro_batches, p.num_virtual_stages)


def refuse_layers_of_whole_batches(p: hyperparams.Params, layers: list[keras.layers.Layer]) -> None:
    """Raise ValueError for layers that need a whole batch in training."""
    num_micro_batches = p.num_replicas * p.num_micro_batches
    for layer in layers:
        if isinstance(layer, _MIXING_LAYERS) and num_micro_batches > 1:
            raise ValueError(f'Layer {layer.name!r} mixes the examples of a batch, but would see only the rows of one '
                             f'micro-batch. Set num_micro_batches=1, or put {type(layer).__name__} into the input.')
        rows = layer.noise_shape[0] if isinstance(layer, _LAYERS_WITH_NOISE_SHAPE) and layer.noise_shape else None
        if rows is not None and max(rows, num_micro_batches) > 1:
            raise ValueError(f'Layer {layer.name!r} has noise_shape={layer.noise_shape!r}, whose first entry is of a '
                             'whole batch, but it would get only the rows of one micro-batch. Set that entry to None.')


def validate_batch(batch: Any, count: int, p: hyperparams.Params, devices: Iterable[str]) -> None:
    """Raise ValueError if `count` micro-batches may differ in shape on a device that needs static shapes."""
    compiled = next((device for device in devices if device_kinds.has_static_shapes_only(device)), None)
    if compiled is None:
        return
    for leaf in tf.nest.flatten(batch):
        shape = tf.TensorShape([]) if leaf is None else tf.TensorShape(leaf.shape)
        if not shape.is_fully_defined() or shape.rank and shape[0] % count:
            raise ValueError(
                f'A batch has a tensor of shape {tuple(shape)}, but programs on {compiled} are compiled for one shape: '
                f'every size must be known, and the number of rows a multiple of num_replicas={p.num_replicas} times '
                f'num_micro_batches={p.num_micro_batches}. Set the batch size to such a multiple, and '
                'drop_remainder=True in the input pipeline.')


def _check_layers(p: hyperparams.Params, num_layers: int, schedule: schedules.Schedule) -> None:
    if schedule.num_stages > num_layers:
        raise ValueError(
            f'num_partitions={p.num_partitions} with num_virtual_stages={p.num_virtual_stages} and schedule='
            f'{schedule.name!r} is {schedule.num_stages} stages for {num_layers} layers, but each stage needs a layer. '
            f'Set num_partitions to {max(1, num_layers * p.num_partitions // schedule.num_stages)} or less.')
    check_cut(p.partition_by, num_layers, schedule.num_stages)


def require_device_names(devices: Any) -> None:
    """Raise ValueError if the field `devices` is not a list of names."""
    if not isinstance(devices, (list, tuple)) or not all(isinstance(name, str) for name in devices):
        example = [devices] if isinstance(devices, str) else ['CPU:0']
        raise ValueError(f'devices={devices!r} is not a list of names. Set it to one, such as {example!r}.')


def _check_devices(devices: list[str], num_partitions: int, num_replicas: int) -> None:
    require_device_names(devices)
    if len(devices) != num_partitions * num_replicas:
        times = f' and num_replicas={num_replicas}' if num_replicas > 1 else ''
        raise ValueError(
            f'devices={list(devices)} names {len(devices)} devices for num_partitions={num_partitions}{times}: '
            f'give one device for each partition{" of each replica" if times else ""}, or None.')
    known = [device.name for device in tf.config.list_logical_devices()]
    here = tf.DeviceSpec(job='localhost', replica=0, task=0)
    full_names = [here.make_merged_spec(tf.DeviceSpec.from_string(name)).to_string() for name in known]
    for name in devices:
        if not _is_one_of(name, full_names) and not device_kinds.is_logical_core(name):
            nearest = wording.did_you_mean(name, known, see_all='tf.config.list_logical_devices()')
            raise ValueError(f'devices has {name!r}, which this program does not see{nearest} Choose one that it sees.')


def _is_one_of(name: str, full_names: list[str]) -> bool:
    try:  # for a name without a kind TensorFlow would choose one
        has_kind = tf.DeviceSpec.from_string(name).device_type is not None
        return has_kind and any(variable_placement.is_same_device(name, each) for each in full_names)
    except ValueError:
        return False


def _check_choice(field: str, value: Any, choices: list) -> None:
    has_ends = field == 'partition_by'
    if value not in choices and not (has_ends and isinstance(value, (list, tuple))):
        raise ValueError(f'{field}={value!r} is unknown{wording.did_you_mean(str(value), choices)} It must be one of '
                         f'{choices}{" or a list of end indices" if has_ends else ""}.')


def refuse_strategies(name: str) -> None:
    """Raise ValueError inside the scope of a `tf.distribute` strategy."""
    if tf.distribute.has_strategy():
        raise ValueError(
            f'{name!r} is used in the scope of a {type(tf.distribute.get_strategy()).__name__}, but a pipeline places '
            'its variables and sums over replicas itself. Leave the scope; for replicas set num_replicas.')


def refuse_overwritten(variables: Iterable[keras.Variable]) -> None:
    """Raise ValueError for variables that Keras overwrites with gradients."""
    names = [variable.path for variable in variables if getattr(variable, 'overwrite_with_gradient', False)]
    if names:
        raise ValueError(
            f'Variables {names[:3]} are overwritten with their gradients, as those that layers quantized to float8 '
            'scale by, and micro-batches would add these up. Train the plain model, or in mixed_bfloat16.')
