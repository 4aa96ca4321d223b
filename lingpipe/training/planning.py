"""`lingpipe.plan`: what fits, how fast it is, and numbers in place of 'auto', before anything runs."""

import os
from typing import Any

import tensorflow as tf

from lingpipe import hyperparams
from lingpipe.optimizers import training_optimizer
from lingpipe.planner import accelerators, picture, plans, resolution, search
from lingpipe.training import experiment, inspection

_DEFAULT_SLOTS = 2


class Planned:
    """A plan with its params; `print` shows the table.

    Attributes:
        plan: `Plan`.
        compared: list of the best `Plan`s among those that 'auto' allows, best first.
        params: the given params, with numbers in place of 'auto'.
        device_name: name of an accelerator, or None.
        alternative: `Plan` on more devices that fits where `plan` does not, or None.
    """

    def __init__(self, compared: list, params: hyperparams.Params, device_name: str | None,
                 alternative: plans.Plan | None) -> None:
        self.plan, self.compared = compared[0], compared
        self.params, self.device_name, self.alternative = params, device_name, alternative

    def __str__(self):
        text = inspection.describe_plan(self.plan, self.device_name, self.alternative)
        return text if len(self.compared) == 1 else f'{text}\n\n{inspection.comparison(self.compared)}'

    @property
    def sentence(self) -> str:
        """Says whether the model fits, and if not, what would help."""
        return inspection.sentence(self.plan, self.device_name, self.alternative)

    def png(self) -> bytes:
        """Returns the picture of the devices' memory, as the bytes of a PNG file."""
        from lingpipe import drawing  # here, because matplotlib takes a while to import
        return drawing.png(picture.figure(self.plan, self.sentence.split('; ')[0]))


def plan(params: hyperparams.Params, accelerator: str | None = None, device_memory: int | str | None = None,
         num_devices: int | None = None, input_specs: Any = None, num_optimizer_slots: float | None = None,
         profile_device: str | None = None) -> Planned:
    """Plans a model before anything is allocated.

    `num_partitions`, `num_micro_batches`, `num_replicas`, `schedule`, `num_virtual_stages`, `recompute` and
    `partition_by` may be 'auto': the plan with the shortest simulated step of those that fit is chosen.

    Args:
        params: Params of an experiment, as `model_registry.GetParams` returns them, or `GPipeLayer.Params()`.
        accelerator: name of the accelerator, such as 'v3' or 'a100' (see `planner.accelerators`); None: a processor
            core, with as much memory as the body's `memory_limit` says.
        device_memory: memory of a device, as '16GiB' or in bytes; None: as the accelerator has.
        num_devices: how many devices 'auto' may use; None: the fewest on which the model fits.
        input_specs: nest of `tf.TensorSpec` `[batch, ...]` of the input; only for `GPipeLayer.Params()`.
        num_optimizer_slots: tensors that the optimizer keeps for each weight; None: counted from the experiment's
            optimizer, Adam's 2 for `GPipeLayer.Params()`.
        profile_device: name of the device on which layers are measured where `partition_by` is 'time' or 'step_time';
            None: nothing is measured, and times follow from floating-point operations and bytes.

    Returns:
        `Planned`.

    Raises:
        ValueError: a field or an argument is wrong.
    """
    body, specs, num_slots = _parts(params, input_specs, num_optimizer_slots)
    resolution.validate(body)
    if body.partition_by == 'time' and profile_device is None:
        body = body.Copy().Set(partition_by='flops')
    found = accelerators.find(accelerator) if accelerator else None
    memory = picture.to_bytes('device_memory', device_memory) if device_memory else None
    setting = resolution.make_setting(body, specs, found, memory, num_slots, profile_device, num_devices)
    settings = [setting, *(resolution.for_replicas(setting, count)
                           for count in search.numbers_of_replicas(body, num_devices)[1:])]
    compared = search.find_plans(settings, body, num_devices)
    chosen = compared[0]
    alternative = None if chosen.fits else search.fewest_devices(chosen.setting, body, 1024)
    return Planned(compared, _with_body(params, chosen), accelerator, alternative)


def resolved(params: hyperparams.Params, num_devices: int | None = None, on_cpu: bool = False) -> hyperparams.Params:
    """Returns params with values in place of 'auto', by default for the devices of this machine, and prints the values.

    With partition_by='auto' layers are measured first; otherwise times follow from operations and bytes.
    """
    if not resolution.is_open(params.task.body):
        return params
    num_devices = num_devices or num_local_devices(on_cpu)
    is_measured = params.task.body.partition_by == search.AUTO
    planned = plan(params, device_memory=_local_memory(num_devices, on_cpu), num_devices=num_devices,
                   profile_device=_local_device(on_cpu) if is_measured else None)
    print(f"'auto': {_chosen(params.task.body, _body(planned.params))}. {planned.sentence}", flush=True)
    return planned.params


def _chosen(before, after):
    return ', '.join(f'{field}={after.Get(field)!r}' for field in search.FIELDS if before.Get(field) == search.AUTO)


def num_local_devices(on_cpu: bool = False) -> int:
    """Returns the number of accelerators; without any, or with `on_cpu`, the number of processor cores."""
    found = [] if on_cpu else [len(tf.config.list_physical_devices(kind)) for kind in ('TPU', 'GPU')]
    return next((count for count in found if count), os.cpu_count())


def _local_device(on_cpu):
    """Returns the name of the device on which layers are measured; None on TPUs, where that does not work."""
    if not on_cpu and tf.config.list_physical_devices('TPU'):
        return None
    return 'GPU:0' if not on_cpu and tf.config.list_physical_devices('GPU') else 'CPU:0'


def _local_memory(num_devices, on_cpu):
    """Returns the memory of a GPU that the planner knows; without accelerators a device's part of the machine's."""
    for gpu in [] if on_cpu else tf.config.list_physical_devices('GPU'):
        name = tf.config.experimental.get_device_details(gpu).get('device_name', '').lower()
        known = [
            accelerator for accelerator in accelerators.ACCELERATORS.values() if accelerator.name.split('-')[0] in name]
        return min((accelerator.memory for accelerator in known), default=None)
    if not on_cpu and tf.config.list_physical_devices('TPU'):
        return None
    return os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') // num_devices


def _body(params):
    return params.task.body if 'task' in params else params


def _with_body(params, chosen):
    """Returns a copy of the params with the values of a plan."""
    body = resolution.resolved(_body(params), chosen)
    if 'task' not in params:
        return body
    params = params.Copy()
    params.task.body = body
    return params


def _parts(params, input_specs, num_slots):
    """Returns the body's params, the specs of its input, and the number of optimizer slots."""
    if 'task' not in params:
        if input_specs is None:
            raise ValueError('input_specs=None: GPipeLayer.Params() do not say what goes in. Give '
                             'tf.TensorSpec([batch, ...]).')
        return params, input_specs, next(
            count for count in (num_slots, params.num_optimizer_slots, _DEFAULT_SLOTS) if count is not None)
    if num_slots is None:
        num_slots = params.task.body.num_optimizer_slots
    if num_slots is None:
        num_slots = training_optimizer.num_slots(params.train)
    return experiment.body_params(params), input_specs or params.input.cls.InputSpec(params.input), num_slots
