"""From params to a plan, and back: numbers in the place of every 'auto'."""

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from lingpipe import schedules
from lingpipe.partition import balancing, layer_memory, tensor_sizes
from lingpipe.partition.layer_profile import LayerTime
from lingpipe.pipeline import layer_sources, validation
from lingpipe.planner import accelerators, plans
from lingpipe.stages import micro_batches

AUTO = 'auto'
RECOMPUTE = ('none', 'stage', 'layer')

# Beyond that many actions a step takes longer to lay out than anybody waits, and planning does too.
_MOST_ACTIONS = 2**15
_FIELDS = ('num_partitions', 'num_micro_batches', 'recompute', 'num_replicas')
_DEFAULT_MOST_PARTITIONS = 1024


class Choices(NamedTuple):
    """What to choose among.

    Attributes:
        num_partitions: list of values of K.
        num_micro_batches: list of values of M.
        recompute: list of values of `recompute`.
    """

    num_partitions: list
    num_micro_batches: list
    recompute: list


def choices(p: Any, num_layers: int, batch_size: Any, most_partitions: int) -> Choices:
    """Returns the `Choices` that params leave open.

    Args:
        p: `GPipeLayer.Params()`, with 'auto' in some of `num_partitions`, `num_micro_batches` and `recompute`.
        num_layers: number of layers.
        batch_size: examples in a mini-batch.
        most_partitions: the largest number of partitions to consider.
    """
    most_partitions = min(most_partitions, num_layers // p.num_virtual_stages)
    return Choices(
        _doubling(most_partitions) if p.num_partitions == AUTO else [p.num_partitions],
        _divisors(batch_size) if p.num_micro_batches == AUTO else [p.num_micro_batches],
        list(RECOMPUTE) if p.recompute == AUTO else [p.recompute])


def all_plans(setting: plans.Setting, p: Any, open_choices: Choices) -> Iterator[Any]:
    """Makes every plan that params allow.

    Args:
        setting: `Setting`.
        p: `GPipeLayer.Params()`.
        open_choices: `Choices`.

    Yields:
        `Plan`s; combinations that a schedule does not know, or a cut that is written down, are left out.
    """
    for num_partitions in open_choices.num_partitions:
        for num_micro_batches in open_choices.num_micro_batches:
            schedule = _schedule(p, num_partitions, num_micro_batches)
            if schedule is None or not _has_cut_for(schedule, p, len(setting.stack)):
                continue
            for recompute in open_choices.recompute:
                if not (schedule.splits_backward and recompute == 'layer'):
                    yield plans.make_plan(setting, schedule, recompute, p.partition_by)


def best(candidates: Any) -> Any:
    """Returns the fastest plan that fits; where none fits, the one that needs the least memory.

    Among plans that are equally fast to a hundredth, the one with the fewest partitions, then with the least memory.
    """
    fitting = [plan for plan in candidates if plan.fits]
    if not fitting:
        return min(candidates, key=lambda plan: max(plan.device_bytes))
    least = min(plan.step_time for plan in fitting)
    return min((plan for plan in fitting if plan.step_time <= 1.01 * least),
               key=lambda plan: (plan.schedule.num_devices, max(plan.device_bytes)))


def fewest_devices(setting: plans.Setting, p: Any, most_partitions: int) -> Any:
    """Returns the fastest plan for the fewest devices on which the model fits, or None.

    Args:
        setting: `Setting`.
        p: `GPipeLayer.Params()`.
        most_partitions: the largest number of partitions to consider.
    """
    p = p.Copy().Set(num_partitions=AUTO)
    open_choices = choices(p, len(setting.stack), setting.stack.batch_size, most_partitions)
    for num_partitions in open_choices.num_partitions:
        candidates = list(all_plans(setting, p, open_choices._replace(num_partitions=[num_partitions])))
        if any(plan.fits for plan in candidates):
            return best(candidates)
    return None


def _schedule(p, num_partitions, num_micro_batches):
    if 2 * num_partitions * p.num_virtual_stages * num_micro_batches > _MOST_ACTIONS and AUTO in (
            p.num_partitions, p.num_micro_batches):
        return None
    try:
        return schedules.make_schedule(p.schedule, num_partitions, num_micro_batches, p.num_virtual_stages)
    except ValueError:
        if AUTO in (p.num_partitions, p.num_micro_batches):
            return None
        raise


def _has_cut_for(schedule, p, num_layers):
    """Returns whether the layers can be cut for a schedule; with 'auto' a written cut fits one number of stages."""
    if p.num_partitions != AUTO:
        return True
    try:
        validation.check_cut(p.partition_by, num_layers, schedule.num_stages)
    except ValueError:
        return False
    return schedule.num_stages <= num_layers


def _doubling(most):
    return sorted({min(2**power, most) for power in range(most.bit_length() + 1)})


def _divisors(number):
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


class LayerStack:
    """The layers of a model with their sizes; nothing is allocated. Equal layers are looked at once.

    Args:
        source: where the layers come from, such as `layer_sources.LayersOfParams`.
        input_specs: nest of `tf.TensorSpec` `[batch, ...]` of the input, every dimension known.
        micro_batch_sizes: the sizes of micro-batches, in examples, that will be asked for.
        tensor_size: function from shape and dtype to the bytes that a device stores a tensor in.

    Attributes:
        source: as given.
        analyses: list of `LayerAnalysis`.
        batch_size: examples in a mini-batch.
    """

    def __init__(self, source: layer_sources.LayersOfParams | layer_sources.LayersOfModel, input_specs: Any,
                 micro_batch_sizes: Any, tensor_size: tensor_sizes.TensorSize = tensor_sizes.plain_size) -> None:
        self._tensor_size = tensor_size
        self.source = source
        self._input_specs = input_specs
        self._known_sizes = min(micro_batch_sizes), max(micro_batch_sizes)
        self.analyses = source.analyses(input_specs)
        self.batch_size = tf.nest.flatten(input_specs)[0].shape[0]
        self._memories = {}

    def __len__(self):
        return len(self.analyses)

    def memories(self, micro_batch_size: Any) -> list:
        """Returns the list of `LayerMemory` for micro-batches of a size; a loss keeps as much as the last outputs.

        Layers are traced for the smallest and the largest size only. Sizes between them lie on the line through both.
        """
        if micro_batch_size not in self._memories:
            self._memories[micro_batch_size] = self._find_memories(micro_batch_size)
        return self._memories[micro_batch_size]

    def least_times(self, micro_batch_size: Any, accelerator: Any, dtype: Any) -> list:
        """Returns the list of `LayerTime`: the least that an accelerator needs for a micro-batch of a size.

        An operation takes as long as its arithmetic or as moving its data, whichever is longer (the roofline model,
        Williams et al., CACM 52(4), 2009); here a layer counts as one operation that reads its weights and inputs and
        writes what it keeps. A backward pass counts as two forward passes, and what it recomputes as a whole one; a
        layer with no trained weight in it or before it has none.
        """
        times = []
        for layer, memory in zip(self.analyses, self.memories(micro_batch_size)):
            arithmetic = layer.flops.total * micro_batch_size / accelerator.peak_flops(dtype)
            moved = memory.weights + memory.state + memory.inputs + memory.internals + memory.outputs
            seconds = max(arithmetic, moved / accelerator.memory_bandwidth)
            backward = seconds if layer.has_backward else 0.0
            times.append(LayerTime(seconds, 2 * backward, backward))
        return times

    def micro_batch_specs(self, micro_batch_size: Any) -> Any:
        """Returns the nest of `tf.TensorSpec` of the input of a micro-batch."""
        return micro_batches.specs_of(self._input_specs, micro_batch_size)

    def _find_memories(self, micro_batch_size):
        small, large = self._known_sizes
        if micro_batch_size in (small, large):
            *others, last = self.source.memories(self.micro_batch_specs(micro_batch_size), self._tensor_size)
            with_loss = {field: getattr(last, field) + last.outputs for field in ('internals', 'recomputed')}
            return [*others, last._replace(**with_loss)]
        low, high = np.array(self.memories(small)), np.array(self.memories(large))
        between = low + (high - low) * (micro_batch_size - small) // (large - small)
        return [layer_memory.LayerMemory(*row) for row in between.tolist()]


def is_open(p: Any) -> bool:
    """Says whether a field of `GPipeLayer.Params()` is 'auto'."""
    return any(p.Get(field) == AUTO for field in _FIELDS)


def resolved(p: Any, plan: plans.Plan) -> Any:
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


def make_setting(p: Any, input_specs: Any, accelerator: accelerators.Accelerator | None = None,
                 memory_limit: Any = None, num_slots: tf.Tensor = 2,
                 profile_device: str | None = None) -> plans.Setting:
    """Finds out what all plans of a model have in common.

    Args:
        p: `GPipeLayer.Params()`, perhaps with 'auto'.
        input_specs: nest of `tf.TensorSpec` `[batch, ...]` of the input of all replicas, every dimension known.
        accelerator: `Accelerator`; None: a processor core.
        memory_limit: bytes of a device; None: that of `p`, of the accelerator, or none.
        num_slots: tensors that the optimizer keeps for each weight.
        profile_device: name of the device on which layers are measured where `p.partition_by` is 'time' or
            'step_time'; None: not measured.

    Returns:
        `Setting`.
    """
    batch_size = micro_batches.most_rows(_batch_size(input_specs), p.num_replicas)
    input_specs = micro_batches.specs_of(input_specs, batch_size)
    source = layer_sources.of_params(p)
    counts = choices(p, len(source), batch_size, 1).num_micro_batches
    sizes = [micro_batches.most_rows(batch_size, count) for count in counts]
    accelerator = accelerator or accelerators.CPU
    stack = LayerStack(source, input_specs, sizes, accelerator.tensor_size)
    limit = memory_limit or p.memory_limit or accelerator.memory or None
    times = functools.partial(_measured_times, p, stack,
                              profile_device) if p.partition_by in balancing.BY_TIME and profile_device else None
    policy = keras.DTypePolicy(p.dtype_policy) if p.dtype_policy else keras.config.dtype_policy()
    return plans.Setting(stack, accelerator, limit, num_slots / p.num_replicas,
                         policy.compute_dtype, times,
                         p.num_replicas)


def find_plan(setting: plans.Setting, p: Any, most_partitions: Any = None) -> plans.Plan:
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
    if p.num_partitions == AUTO and most_partitions is None:
        fewest = fewest_devices(setting, p, _DEFAULT_MOST_PARTITIONS)
        if fewest:
            return fewest
    candidates = list(all_plans(setting, p, choices(
        p, len(setting.stack), setting.stack.batch_size, most_partitions or _DEFAULT_MOST_PARTITIONS)))
    if not candidates:
        raise ValueError(
            f'schedule={p.schedule!r} with partition_by={p.partition_by!r} does not go with any of the numbers of '
            "partitions and micro-batches that 'auto' tries. Set num_partitions and num_micro_batches to numbers.")
    return best(candidates)


def validate(p: Any) -> None:
    """Raises ValueError as `GPipeLayer` would, but for fields that are 'auto'."""
    defaults = {'num_partitions': 1, 'num_micro_batches': 1, 'recompute': 'stage', 'num_replicas': 1}
    open_fields = {field: value for field, value in defaults.items() if p.Get(field) == AUTO}
    num_layers = len(p.layers) if p.model is None else None
    validation.validate_gpipe_params(p.Copy().Set(devices=None, **open_fields), num_layers)


def _measured_times(p, stack, device, micro_batch_size):
    times = stack.source.times(stack.micro_batch_specs(micro_batch_size), device, p.profile_dir, stack.analyses)
    return [time if layer.has_backward else time._replace(backward_seconds=0.0, recomputed_seconds=0.0)
            for time, layer in zip(times, stack.analyses)]


def _batch_size(input_specs):
    specs = tf.nest.flatten(input_specs)
    if not all(spec.shape.is_fully_defined() for spec in specs):
        raise ValueError(f'A plan needs every size of the input, the batch size included, and got '
                         f'{[tuple(spec.shape) for spec in specs]}. Give tf.TensorSpec([batch, ...], dtype).')
    return specs[0].shape[0]
