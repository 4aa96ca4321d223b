"""`lingpipe.plan`, which finds a plan that fits the devices, and values for 'auto'."""

import functools
import os
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from lingpipe import hyperparams
from lingpipe.models import pipeline_model
from lingpipe.optimizers import training_optimizer
from lingpipe.partition import accelerators
from lingpipe.pipeline import construction, gpipe_layer, layer_sources
from lingpipe.planner import plans, resolution, search
from lingpipe.stages import micro_batches
from lingpipe.training import experiment, inspection

_SLOTS_OF_ADAM = 2
_MEASURED_ON = {'TPU': None, 'GPU': 'GPU:0', 'CPU': 'CPU:0'}  # measuring layers does not work on TPUs


class Planned:
    """The best plan for a model. `print` shows its tables.

    Attributes:
        compared: list of the best `Plan`s that the params allow. It begins with `plan`, the best of all.
        params: the model's params, with the plan's values instead of 'auto'.
        alternative: if `plan` does not fit, a `Plan` on more devices that fits, if one is found; otherwise None.
    """

    def __init__(self, compared: list, params: hyperparams.Params, device_name: str | None,
                 alternative: plans.Plan | None) -> None:
        self.plan, self.compared = compared[0], compared
        self.params, self.device_name, self.alternative = params, device_name, alternative

    def __str__(self) -> str:
        text = inspection.describe_plan(self.plan, self.device_name, self.alternative)
        return text if len(self.compared) == 1 else f'{text}\n\n{inspection.comparison(self.compared)}'

    @property
    def fields(self) -> dict[str, Any]:
        """Settings that the plan chose, as a dictionary of arguments for `GPipeLayer.from_keras`."""
        body = _body(self.params)
        return {field: body.Get(field) for field in search.FIELDS}

    @property
    def sentence(self) -> str:
        """Sentence that says whether the model fits, and if not, what would help."""
        return inspection.sentence(self.plan, self.device_name, self.alternative)

    def png(self) -> bytes:
        """Draw the memory of each device by kind of tensor, and return the bytes of a PNG file."""
        from lingpipe import drawing  # here, because matplotlib takes a while to import
        return drawing.png(plans.figure(self.plan, self.sentence.split('. ')[0]))


def plan(model: Any, accelerator: str | None = None, device_memory: int | str | None = None,
         num_devices: int | None = None, input_specs: Any = None, profile_device: str | None = None, *,
         batch_size: int | None = None) -> Planned:
    """Plan a model before anything is allocated.

    `num_partitions`, `num_micro_batches`, `num_replicas`, `schedule`, `num_virtual_stages`, `recompute` and
    `partition_by` may be 'auto' in the model's params. Of the plans that fit, the fastest in simulation is chosen.
    For a Keras model `num_partitions`, `num_micro_batches`, `schedule` and `recompute` are 'auto'::

        planned = lingpipe.plan(model, batch_size=256, accelerator='a100', num_devices=4)
        print(planned)
        pipe = lingpipe.GPipeLayer.from_keras(model, **planned.fields)

    Args:
        model: a Keras model, a `GPipeLayer`, a `PipelineModel`, Params of an experiment as
            `model_registry.GetParams` returns them, or `GPipeLayer.Params()`.
        accelerator: name, such as 'v3' or 'a100' (see `partition.accelerators`); None: a processor core.
        device_memory: memory of each device, as '16GiB' or in bytes; None: the body's `memory_limit`, or if that is
            None, the accelerator's memory. Without any of these, there is no limit.
        num_devices: how many devices 'auto' may use; None: the fewest on which the model fits.
        input_specs: nest of `tf.TensorSpec`, one for each input tensor `[batch, ...]`. Required for
            `GPipeLayer.Params()` and for a `GPipeLayer` made from a list of layers.
        profile_device: device to measure layers on if `partition_by` is 'time' or 'auto'. None: nothing is measured,
            and times follow from floating-point operations and bytes.
        batch_size: number of rows in a Keras model's training batch; None: as the model's inputs or `input_specs` say.

    Raises:
        TypeError: `model` has none of the types above.
        ValueError: a field or an argument is wrong.
    """
    if batch_size is not None and (not isinstance(batch_size, int) or batch_size < 1):
        raise ValueError(f'batch_size={batch_size!r} is not a number of rows. Give an integer of 1 or more.')
    subject = _subject(model, input_specs)
    body, specs = subject.body, subject.specs
    if specs is None:
        raise ValueError('input_specs=None: the model does not say what goes in. Give tf.TensorSpec([batch, ...]).')
    if batch_size is not None:
        specs = micro_batches.specs_of(specs, batch_size)
    num_slots = subject.num_slots if body.num_optimizer_slots is None else body.num_optimizer_slots
    resolution.validate(body, subject.source)
    if body.partition_by == 'time' and profile_device is None:
        body = body.Copy().Set(partition_by='flops')
    found = accelerators.find(accelerator) if accelerator else None
    memory = plans.to_bytes('device_memory', device_memory) if device_memory else None
    setting = resolution.make_setting(
        body, specs, found, memory, num_slots, profile_device, num_devices, subject.source)
    settings = [setting, *(resolution.for_replicas(setting, count)
                           for count in search.numbers_of_replicas(body, num_devices)[1:])]
    compared = search.find_plans(settings, body, num_devices)
    chosen = compared[0]
    alternative = None if chosen.fits else search.fewest_devices(chosen.setting, body, 1024)
    return Planned(compared, _with_body(subject.params, chosen), accelerator, alternative)


def resolved(params: hyperparams.Params, num_devices: int | None = None, on_cpu: bool = False) -> hyperparams.Params:
    """Return params with planned values instead of 'auto', and print them. By default, plan for all local devices."""
    if not resolution.is_open(params.task.body):
        return params
    kind, num_devices = _local_kind(on_cpu), num_devices or num_local_devices(on_cpu)
    is_measured = params.task.body.partition_by == search.AUTO
    planned = plan(params, device_memory=_local_memory(kind, num_devices), num_devices=num_devices,
                   profile_device=_MEASURED_ON[kind] if is_measured else None)  # else times follow from FLOPs and bytes
    chosen = ', '.join(f'{field}={value!r}' for field, value in planned.fields.items()
                       if params.task.body.Get(field) == search.AUTO)
    print(f"'auto': {chosen}. {planned.sentence}", flush=True)
    return planned.params


def num_local_devices(on_cpu: bool = False) -> int:
    """Return the number of accelerators. Without any, or with `on_cpu`, return the number of processor cores."""
    kind = _local_kind(on_cpu)
    return os.cpu_count() or 1 if kind == 'CPU' else len(tf.config.list_physical_devices(kind))


def _local_kind(on_cpu: bool) -> str:
    kinds = () if on_cpu else ('TPU', 'GPU')
    return next((kind for kind in kinds if tf.config.list_physical_devices(kind)), 'CPU')


def _local_memory(kind: str, num_devices: int) -> int | None:
    """Return how many bytes of memory each local device has, or None if unknown."""
    if kind != 'CPU':
        return accelerators.memory_of_gpus() if kind == 'GPU' else None
    return os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') // num_devices


def _body(params: hyperparams.Params) -> hyperparams.Params:
    return params.task.body if 'task' in params else params


def _with_body(params: hyperparams.Params, chosen: plans.Plan) -> hyperparams.Params:
    """Return a copy of `params` whose body has the settings of the plan `chosen`."""
    body = resolution.resolved(_body(params), chosen)
    if 'task' not in params:
        return body
    params = params.Copy()
    params.task.body = body
    return params


class _Subject(NamedTuple):
    """What `plan` needs to know about a model."""

    params: hyperparams.Params  # of an experiment or a pipeline
    body: hyperparams.Params  # of the pipeline
    specs: Any  # of the input
    source: Any = None  # `LayerSource` of the layers; None: the layers that `body` describes
    num_slots: float = _SLOTS_OF_ADAM  # tensors that training keeps for each weight


@functools.singledispatch
def _subject(model: Any, input_specs: Any) -> _Subject:
    raise TypeError(f'model={model!r} cannot be planned. Give a Keras model, a GPipeLayer, a PipelineModel, the Params '
                    'of an experiment, or GPipeLayer.Params().')


@_subject.register
def _(params: hyperparams.Params, input_specs: Any) -> _Subject:
    if 'task' in params:
        specs = input_specs or experiment.input_spec(params)
        return _Subject(
            params, experiment.body_params(params), specs, num_slots=training_optimizer.num_slots(params.train))
    return _Subject(params, params, input_specs)


@_subject.register
def _(model: keras.Model, input_specs: Any) -> _Subject:
    source = layer_sources.LayersOfModel(model)
    params = gpipe_layer.GPipeLayer.Params().Set(
        name=model.name, dtype_policy=model.dtype_policy.name, **construction.DEFAULTS)
    return _Subject(params, params, input_specs or source.input_specs, source, _slots_of(model))


@_subject.register
def _(pipe: gpipe_layer.GPipeLayer, input_specs: Any) -> _Subject:
    params = hyperparams.CopyFieldsTo(pipe.params, type(pipe).Params())  # params of a pipeline are frozen
    return _Subject(params, params, input_specs or pipe.source.input_specs, pipe.source)


@_subject.register
def _(model: pipeline_model.PipelineModel, input_specs: Any) -> _Subject:
    return _subject(model.pipe, input_specs)._replace(num_slots=_slots_of(model))


def _slots_of(model: keras.Model) -> float:
    """Return how many slots a model's optimizer keeps per weight."""
    optimizer = getattr(model, 'optimizer', None)
    return training_optimizer.count_slots(optimizer) if optimizer else _SLOTS_OF_ADAM
