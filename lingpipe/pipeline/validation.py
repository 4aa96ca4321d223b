"""Checks of a pipeline's params before anything is built, and of its batches."""

import difflib
import math
from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf

from lingpipe import hyperparams, schedules, spelling
from lingpipe.devices import collectives, device_kinds, variable_placement
from lingpipe.layers import base_layer
from lingpipe.partition import exact_cut
from lingpipe.private_api import pywrap_tfe, record

_CHOICES = {
    'recompute': ['auto', 'none', 'selective', 'stage', 'layer'],
    'partition_by': ['flops', 'time', 'step_time', 'params'],
    'gradient_sum': list(collectives.METHODS),
    'added_losses': ['exact', 'averaged'],
    'tpu_route': ['auto', 'spmd', 'stage_programs', 'logical_cores'],
}
_MIXING_LAYERS = keras.layers.MixUp, keras.layers.CutMix  # each example gets parts of another one in training
_LAYERS_WITH_NOISE_SHAPE = keras.layers.Dropout, keras.layers.AlphaDropout


def validate_gpipe_params(p: hyperparams.Params, num_layers: int | None) -> None:
    """Raise ValueError, which says what to do, if a field of GPipeLayer's params cannot work.

    Args:
        num_layers: number of layers to cut; None if it is not known yet.
    """
    if num_layers == 0:
        raise ValueError('layers=[] gives GPipeLayer nothing to run: set it to a list of layer params, or model to the '
                         'params of a Keras model.')
    for field in ('num_partitions', 'num_micro_batches', 'num_virtual_stages', 'num_replicas'):
        value = getattr(p, field)
        if value == 'auto':
            raise ValueError(
                f"{field}='auto' is not resolved by GPipeLayer itself: give a number of 1 or more, such as one that "
                'lingpipe.plan(...).fields has.')
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(
                f'{field}={value!r} is not possible: it must be an integer of 1 or more. Set it to 1 at least.')
    if p.partition_by == 'auto':
        raise ValueError("partition_by='auto' is not resolved by GPipeLayer itself: give a value such as "
                         'lingpipe.plan(...).fields has.')
    for field, choices in _CHOICES.items():
        _check_choice(field, getattr(p, field), choices)
    if p.dtype_policy is not None:
        _check_choice('dtype_policy', p.dtype_policy, base_layer.DTYPE_POLICIES)
    _check_memory_fields(p)
    schedule = make_schedule(p)
    if num_layers is not None:
        _check_layers(p, num_layers, schedule)
    if schedule.splits_backward and p.recompute == 'layer':
        raise ValueError(
            f"recompute='layer' does not go with schedule={schedule.name!r}, which splits the backward pass of a whole "
            "partition. Set recompute='stage' or 'none'.")
    if p.devices is not None:
        _check_devices(p.devices, p.num_partitions, p.num_replicas)


def check_cut(partition_by: Any, num_layers: int, num_stages: int) -> None:
    """Raise ValueError if the field partition_by is a list of ends that does not cut the layers into the stages."""
    if not isinstance(partition_by, str):
        exact_cut.validate_partition_ends(partition_by, num_layers, num_stages)


def make_schedule(p: hyperparams.Params) -> schedules.Schedule:
    """Return the `Schedule` that GPipeLayer's params describe.

    Raises:
        ValueError: the schedule is unknown, or does not fit the numbers of partitions and micro-batches.
    """
    return schedules.make_schedule(p.schedule, p.num_partitions, p.num_micro_batches, p.num_virtual_stages)


def refuse_layers_of_whole_batches(p: hyperparams.Params, layers: list[keras.layers.Layer]) -> None:
    """Raise ValueError for layers that, only in training, need a whole batch: they mix examples, or fix its size."""
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
    """Raise ValueError if a batch needs programs of several shapes on devices that compile for one shape.

    Args:
        count: number of micro-batches that the batch gives, in all replicas.
    """
    compiled = next((device for device in devices if device_kinds.has_static_shapes_only(device)), None)
    if compiled is None:
        return
    for leaf in tf.nest.flatten(batch):
        shape = tf.TensorShape([]) if leaf is None else tf.TensorShape(leaf.shape)
        if not shape.is_fully_defined() or shape.rank and shape[0] % count:
            times = f'num_replicas={p.num_replicas} times ' if p.num_replicas > 1 else ''
            raise ValueError(
                f'A batch has a tensor of shape {tuple(shape)} for {times}num_micro_batches={p.num_micro_batches} on '
                f'{compiled}, where programs are compiled for one shape: every size must be known, and the number of '
                f'rows a multiple of {p.num_replicas * p.num_micro_batches}. Set the batch size to such a multiple, '
                'and drop_remainder=True in the input pipeline.')


def _check_layers(p: hyperparams.Params, num_layers: int, schedule: schedules.Schedule) -> None:
    if schedule.num_stages > num_layers and schedule.num_stages > p.num_partitions * p.num_virtual_stages:
        raise ValueError(
            f'schedule={schedule.name!r} has {schedule.num_stages} stages for {num_layers} layers: each partition '
            f'needs a layer. Give an order of {num_layers} stages or fewer.')
    if schedule.num_stages > num_layers:
        times = f' times num_virtual_stages={p.num_virtual_stages}' if p.num_virtual_stages > 1 else ''
        raise ValueError(
            f'num_partitions={p.num_partitions}{times} is more than the {num_layers} layers: each partition needs a '
            f'layer. Set num_partitions to {max(1, num_layers // p.num_virtual_stages)} or less.')
    check_cut(p.partition_by, num_layers, schedule.num_stages)


def _check_memory_fields(p: hyperparams.Params) -> None:
    if p.memory_limit is not None and not (
            _is_number(p.memory_limit, (int, float)) and 0 < p.memory_limit < math.inf):
        raise ValueError(f'memory_limit={p.memory_limit!r} is not possible: it is the number of bytes that a device '
                         'may hold. Set it to such a number, as 16e9, or to None for no limit.')
    if p.batch_size is not None and not (_is_number(p.batch_size, int) and p.batch_size > 0):
        raise ValueError(f'batch_size={p.batch_size!r} is not possible: it is the number of rows of a training batch. '
                         'Set it to 1 or more, or to None.')
    slots = p.num_optimizer_slots
    if slots is not None and not (_is_number(slots, int) and slots >= 0):
        raise ValueError(f'num_optimizer_slots={slots!r} is not possible: it is how many tensors the optimizer keeps '
                         'for each weight. Set it to 0 for SGD, 1 for momentum, 2 for Adam, or to None to have it '
                         'counted.')


def _is_number(value: Any, kinds: Any) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)


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
    for name in devices:
        if not device_kinds.is_logical_core(name) and not any(_is_same_device(name, other) for other in known):
            nearest = spelling.did_you_mean(name, known, see_all='tf.config.list_logical_devices()')
            raise ValueError(f'devices has {name!r}, which this program does not see{nearest} Choose one that it sees.')


def _is_same_device(name: str, full_name: str) -> bool:
    """Whether a name such as 'GPU:1' fits a full name; False without a device, where TensorFlow would use a CPU."""
    try:
        spec, full = tf.DeviceSpec.from_string(name), tf.DeviceSpec.from_string(full_name)
    except ValueError:
        return False
    full = tf.DeviceSpec(job='localhost', replica=0, task=0).make_merged_spec(full)
    return spec.device_type is not None and full.make_merged_spec(spec) == full


def _check_choice(field: str, value: Any, choices: list) -> None:
    if value in choices or (field == 'partition_by' and isinstance(value, (list, tuple))):
        return
    near = difflib.get_close_matches(str(value), choices, 1)
    raise ValueError(
        f'{field}={value!r} is unknown: it must be one of {choices}'
        + (' or a list of end indices' if field == 'partition_by' else '')
        + (f'. Did you mean {near[0]!r}?' if near else f'. Set it to {choices[0]!r}, for instance.'))


def refuse_strategies(name: str, layers: Iterable[keras.layers.Layer] = ()) -> None:
    """Raise ValueError inside the scope of a `tf.distribute` strategy, and for variables that were made in one."""
    if tf.distribute.has_strategy():
        raise ValueError(
            f'{name!r} is used in the scope of a {type(tf.distribute.get_strategy()).__name__}, but a pipeline places '
            'its variables and sums over replicas itself. Leave the scope; for replicas set num_replicas.')
    variables = (variable for layer in layers for variable in layer.variables)
    found = [variable.path for variable in variables if variable_placement.is_allocated(variable)
             and isinstance(variable.value, tf.distribute.DistributedValues)]
    if found:
        raise ValueError(
            f'Variables {found[:3]} of {name!r} were made in the scope of a tf.distribute strategy, which copies '
            'them to each of its replicas. Make the model outside of the scope; for replicas set num_replicas.')


def refuse_forward_mode(name: str, inputs: Any, variables: Iterable[keras.Variable]) -> None:
    """Raise ValueError if a `tf.autodiff.ForwardAccumulator` watches inputs or weights."""
    if not record.could_possibly_record():
        return
    tensors = [leaf for leaf in tf.nest.flatten(inputs) if isinstance(leaf, tf.Tensor)]
    handles = [tf.convert_to_tensor(variable_placement.native(variable).handle) for variable in variables]
    if pywrap_tfe.TFE_Py_PackJVPs([*tensors, *handles])[1]:
        raise ValueError(f'{name!r} has no forward-mode derivatives, as of tf.autodiff.ForwardAccumulator. Take '
                         'gradients by a tf.GradientTape.')


def refuse_overwritten(variables: Iterable[keras.Variable]) -> None:
    """Raise ValueError for variables whose gradients in Keras are their new values, which cannot be summed."""
    names = [variable.path for variable in variables if getattr(variable, 'overwrite_with_gradient', False)]
    if names:
        raise ValueError(
            f'Variables {names[:3]} are overwritten with their gradients, as those that layers quantized to float8 '
            'scale by, and micro-batches would add these up. Train the plain model, or in mixed_bfloat16.')


def refuse_regularizers_outside(variables: Iterable[keras.Variable], inside: Iterable[keras.Variable]) -> None:
    """Raise ValueError for trainable variables that have a regularizer but no partition that would count it."""
    known = set(map(id, inside))
    names = [variable.path for variable in variables if variable.regularizer is not None and id(variable) not in known]
    if names:
        raise ValueError(
            f'Weights {names[:3]} have a regularizer, but belong to a layer that the model does not call between its '
            'inputs and outputs, so no partition has them. Leave the layer out of the model, or set its trainable to '
            'False.')
