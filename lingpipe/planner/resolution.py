"""Conversion of params with 'auto' to a `Setting`, and of a plan to params without 'auto'."""

import copy
import dataclasses
import functools
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from lingpipe import hyperparams
from lingpipe.partition import accelerators, layer_memory, tensor_sizes
from lingpipe.partition.layer_profile import LayerTime
from lingpipe.pipeline import layer_sources, validation
from lingpipe.planner import plans, search
from lingpipe.planner.search import AUTO
from lingpipe.stages import micro_batches


class LayerStack:
    """The layers of a model with their sizes. Nothing is allocated.

    Args:
        input_specs: nest of `tf.TensorSpec` `[batch, ...]` of the input. Every dimension is known.
        micro_batch_sizes: the micro-batch sizes that will be needed, in examples.
    """

    def __init__(self, source: layer_sources.LayerSource, input_specs: Any,
                 micro_batch_sizes: list[int], tensor_size: tensor_sizes.TensorSize = tensor_sizes.plain_size) -> None:
        self._tensor_size = tensor_size
        self.source = source
        self._input_specs = input_specs
        self._known_sizes = min(micro_batch_sizes), max(micro_batch_sizes)
        self.analyses = source.analyses(input_specs)
        self.batch_size = tf.nest.flatten(input_specs)[0].shape[0]
        self._memories, self._kernels = {}, {}

    def __len__(self):
        return len(self.analyses)

    def for_batch_size(self, batch_size: int) -> 'LayerStack':
        """Return the stack for another batch size."""
        other = copy.copy(self)  # the two stacks share results for micro-batches
        other.batch_size = batch_size
        return other

    def memories(self, micro_batch_size: int) -> list:
        """Return each layer's `LayerMemory` for a micro-batch size. The last layer includes the loss."""
        if micro_batch_size not in self._memories:
            self._memories[micro_batch_size] = self._find_memories(micro_batch_size)
        return self._memories[micro_batch_size]

    def least_times(self, micro_batch_size: int, accelerator: accelerators.Accelerator, dtype: str) -> list:
        """Return a lower bound on the `LayerTime` of each layer, for a micro-batch size."""
        # Roofline model (Williams et al., CACM 52(4), 2009). Here a layer is one operation, which reads its variables
        # and inputs, and writes its internal tensors and outputs. A backward pass takes as long as two forward passes.
        times = []
        for layer, memory in zip(self.analyses, self.memories(micro_batch_size)):
            arithmetic = layer.flops.total * micro_batch_size / accelerator.peak_flops(dtype)
            moved = memory.weights + memory.state + memory.inputs + memory.internals + memory.outputs
            seconds = max(arithmetic, moved / accelerator.memory_bandwidth)
            backward = seconds if layer.has_backward else 0.0
            times.append(LayerTime(seconds, 2 * backward, backward))
        return times

    def achieved_times(self, micro_batch_size: int, accelerator: accelerators.Accelerator,
                       achieved: accelerators.Achieved) -> list:
        """Return each layer's `LayerTime` for a micro-batch size, from speeds measured on the accelerator."""
        if micro_batch_size not in self._kernels:
            self._kernels[micro_batch_size] = self.source.kernels(self.micro_batch_specs(micro_batch_size))
        return [accelerators.layer_time(kernels, accelerator, achieved)
                for kernels in self._kernels[micro_batch_size]]

    def micro_batch_specs(self, micro_batch_size: int) -> Any:
        """Return the specs of the input of a micro-batch, a nest of `tf.TensorSpec`."""
        return micro_batches.specs_of(self._input_specs, micro_batch_size)

    def _find_memories(self, micro_batch_size):
        small, large = self._known_sizes
        if micro_batch_size in (small, large):  # layers are traced only for these
            *others, last = self.source.memories(self.micro_batch_specs(micro_batch_size), self._tensor_size)
            # The loss adds the size of the last outputs.
            with_loss = {field: getattr(last, field) + last.outputs for field in ('internals', 'recomputed')}
            return [*others, last._replace(**with_loss)]
        # Interpolate linearly with Python integers, because products of bytes and rows may exceed NumPy's.
        low, high = np.array(self.memories(small), object), np.array(self.memories(large), object)
        between = low + (high - low) * (micro_batch_size - small) // (large - small)
        return [layer_memory.LayerMemory(*row) for row in between.tolist()]


def is_open(p: hyperparams.Params) -> bool:
    """Return whether a field of `GPipeLayer.Params()` is 'auto'."""
    return any(p.Get(field) == AUTO for field in search.FIELDS)


def resolved(p: hyperparams.Params, plan: plans.Plan) -> hyperparams.Params:
    """Return a copy of `GPipeLayer.Params()` with the choices of a plan."""
    schedule, is_open_cut = plan.schedule, p.partition_by == AUTO
    p = p.Copy().Set(
        num_partitions=schedule.num_devices, num_micro_batches=schedule.num_micro_batches, recompute=plan.recompute,
        num_replicas=plan.setting.num_replicas)
    if AUTO in (p.schedule, p.num_virtual_stages):
        p.Set(schedule=schedule.name, num_virtual_stages=schedule.num_virtual_stages)
    if plan.is_cut_by_memory or is_open_cut:
        p.partition_by = plan.ends
    return p


def make_setting(p: hyperparams.Params, input_specs: Any, accelerator: accelerators.Accelerator | None = None,
                 memory_limit: int | None = None, num_slots: float = 2, profile_device: str | None = None,
                 num_devices: int | None = None, source: Any = None) -> plans.Setting:
    """Make the `Setting` that all plans of a model have in common.

    Args:
        input_specs: nest of `tf.TensorSpec` `[batch, ...]` of the input of all replicas. Every dimension is known.
        accelerator: kind of every device; None: a processor core.
        memory_limit: bytes of a device; None: the limit of `p` or of the accelerator, if any.
        profile_device: device to measure layers on, if `p.partition_by` needs times; None: measure nothing.
        num_devices: number of devices that num_replicas='auto' may use.
        source: `LayerSource` of the layers; None: the layers that `p` describes.

    Raises:
        ValueError: plans do not support a field of `p`, or a size of `input_specs` is unknown.
    """
    if p.recompute == 'selective':
        raise ValueError(
            "recompute='selective' has no plan: what it keeps follows from the operations of a whole partition, and is "
            "between what plans count for 'none' and for 'stage'. Plan with these two, then set 'selective'.")
    batch_size, counts = _batch_size(input_specs), search.numbers_of_replicas(p, num_devices)
    shares = {count: micro_batches.most_rows(batch_size, count) for count in counts}
    source = source or layer_sources.of_params(p)
    sizes = [micro_batches.most_rows(share, number) for share in shares.values()
             for number in search.numbers_of_micro_batches(p, share)]
    accelerator = accelerator or accelerators.CPU
    share = shares[counts[0]]
    stack = LayerStack(source, micro_batches.specs_of(input_specs, share), sizes, accelerator.tensor_size)
    limit = memory_limit or p.memory_limit or accelerator.memory or None
    is_measured = p.partition_by in ('time', AUTO) and profile_device
    times = functools.cache(lambda size: source.times(
        stack.micro_batch_specs(size), profile_device, p.profile_dir, stack.analyses)) if is_measured else None
    policy = keras.DTypePolicy(p.dtype_policy) if p.dtype_policy else keras.config.dtype_policy()
    return plans.Setting(
        stack, accelerator, limit, num_slots / counts[0], policy.compute_dtype, times, counts[0])


def for_replicas(setting: plans.Setting, num_replicas: int) -> plans.Setting:
    """Return the `Setting` for `num_replicas` replicas. The given `setting` is for one replica with the whole batch."""
    share = micro_batches.most_rows(setting.stack.batch_size, num_replicas)
    return dataclasses.replace(
        setting, stack=setting.stack.for_batch_size(share), num_slots=setting.num_slots / num_replicas,
        num_replicas=num_replicas)


def validate(p: hyperparams.Params, source: Any = None) -> None:
    """Raise ValueError for params that `GPipeLayer` refuses. 'auto' is allowed. See `make_setting` for `source`."""
    defaults = {'num_partitions': 1, 'num_micro_batches': 1, 'recompute': 'stage', 'num_replicas': 1,
                'partition_by': 'flops', **search.an_order(p)}
    open_fields = {field: value for field, value in defaults.items() if p.Get(field) == AUTO}
    num_layers = len(source) if source else len(p.layers) if p.model is None else None
    validation.validate_gpipe_params(p.Copy().Set(devices=None, **open_fields), num_layers)


def _batch_size(input_specs):
    specs = tf.nest.flatten(input_specs)
    if not all(spec.shape.is_fully_defined() for spec in specs):
        raise ValueError(f'A plan needs every size of the input, the batch size included, and got '
                         f'{[tuple(spec.shape) for spec in specs]}. Give batch_size, or '
                         'input_specs=tf.TensorSpec([batch, ...], dtype).')
    return specs[0].shape[0]
