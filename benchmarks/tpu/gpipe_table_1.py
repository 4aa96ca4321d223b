"""Table 1 of GPipe (arXiv 1811.06965): the largest models on K cores, as planned and by the TPU compiler.

    pip install -e '.[tpu-compile]'
    python -m benchmarks.tpu.gpipe_table_1 --cache_dir=logs/compiled
    python -m benchmarks.tpu.gpipe_table_1 --cache_dir=logs/compiled --leave_out=moving_average,gradient_sums

This needs much time, but no TPU. Compiled programs are kept in --cache_dir, so a stopped run can resume.

The first row of each table is the model without GPipe: forward and backward pass are one program, with neither
micro-batches nor recomputation. The other rows are the programs of `tpu_route='stage_programs'`.
"""

from typing import NamedTuple

from absl import app, flags

from benchmarks.support import common, tpu_plans
from lingpipe.layers import base_layer
from lingpipe.planner import stage_calls
from lingpipe.tools import plan_compilation, stable_hlo, tpu_compiler
from lingpipe.training import experiment

_FAMILIES = flags.DEFINE_list('families', ['amoebanet', 'transformer_lm'], 'Which halves of the table to make.')
_MODELS = flags.DEFINE_list('models', [], 'Models of the table to compile; none: all.')
_LEAVE_OUT = flags.DEFINE_multi_enum(
    'leave_out', [], ['moving_average', 'gradient_sums'],
    'What the paper does not count: the moving average of the weights, which then is not kept, and the sums of the '
    'gradients over the micro-batches, which then are not counted.')
_FAST = flags.DEFINE_bool('fast', True, 'Whether the compiler optimises less; it then asks for more temporaries.')
_TIMEOUT_SECONDS = flags.DEFINE_integer('timeout_seconds', 3600, 'How long one program may take.')
_CACHE_DIR = flags.DEFINE_string('cache_dir', None, 'Folder that keeps what was compiled.')
_HEADER = ['model', 'accelerator', 'K', 'recompute', 'million parameters published', 'million parameters',
           'all devices published', 'all devices', 'planned MiB', 'compiled MiB', 'planned / compiled', 'limit MiB', 'fits',
           'seconds']
_MIB = 2**20


class Published(NamedTuple):
    """A row of the table.

    Attributes:
        model: name of the params class.
        millions: parameters.
        memory: GB (AmoebaNet) or GiB (Transformer) of weights with optimizer and of activations, over all devices; the
            paper has the two of Transformer-3 in each other's place.
        is_whole: whether the model is one program, without GPipe.
    """

    model: str
    millions: float
    memory: str
    is_whole: bool = False


class Family(NamedTuple):
    """Half of the table.

    Attributes:
        topology: the TPU to compile for.
        unit: bytes of the unit in which the paper gives sizes.
        rows: list of `Published`.
    """

    topology: str
    unit: int
    rows: list


_TABLE = {
    'amoebanet': Family('v2:2x2', 10**9, [
        Published('AmoebaNetD18x208', 82, '1.05 + 6.26', is_whole=True), Published('AmoebaNetD18x416', 318, '3.8 + 3.46'),
        Published('AmoebaNetD18x544', 542, '6.45 + 8.11'), Published('AmoebaNetD36x544', 1050, '12.53 + 15.21'),
        Published('AmoebaNetD72x512', 1800, '24.62 + 26.24')]),
    'transformer_lm': Family('v3:2x2', 2**30, [
        Published('Transformer3', 282.2, '3.15 + 11.7', is_whole=True), Published('Transformer13', 785.8, '8.8 + 6.4'),
        Published('Transformer103', 5300, '59.5 + 50.9'), Published('Transformer157', 8000, '-'),
        Published('Transformer415', 21000, '235.1 + 199.9'), Published('Transformer1663', 83900, '937.9 + 796.1')])}


def whole_program(params):
    """Translate the forward and backward pass of a whole batch as one program.

    Args:
        params: the experiment's Params.

    Returns:
        StableHLO as text; its arguments are the batch and the weights, its results the gradients and the metrics.
    """
    body = experiment.body_params(params).Set(
        num_partitions=1, num_micro_batches=1, recompute='none', partition_by='flops')
    inputs, targets = (spec(params.input) for spec in (params.input.cls.InputSpec, params.input.cls.TargetSpec))
    with base_layer.unallocated_variables():
        task = params.task.Instantiate()
    pipe = stage_calls.unallocated_pipeline(body, inputs)
    step = stage_calls.step_function(pipe, task.loss)
    return stable_hlo.lower(step, inputs, targets, stage_calls.value_specs(pipe))


def _compiled_whole(planned, compiler, topology):
    """Return what a device holds, as `CompiledDevice`; slots are as large as the gradients."""
    text, limit = whole_program(planned.params), tpu_compiler.memory(topology)
    program = compiler.compile(text, topology, fast=_FAST.value)
    return plan_compilation.CompiledDevice(
        weights=program.arguments, slots=planned.plan.setting.num_slots * program.outputs, gradients=program.outputs,
        waiting=0, at_work=0, temporaries=program.temporaries, limit=limit, moment='whole',
        programs=[program])


def _row(compiler, published, name, family):
    override = 'train.ema_decay=0.0' if 'moving_average' in _LEAVE_OUT.value else ''
    planned = tpu_plans.plan(f'params.{name}.{published.model}', family.topology, override)
    try:
        if published.is_whole:
            devices = [_compiled_whole(planned, compiler, family.topology)]
        else:
            devices = plan_compilation.compile_plan(planned, compiler, family.topology, _FAST.value)
    except tpu_compiler.OutOfTpuMemory as error:
        devices = [plan_compilation.CompiledDevice(0, 0, 0, 0, 0, error.needed, error.limit, 'one program', [])]
    if 'gradient_sums' in _LEAVE_OUT.value and not published.is_whole:
        devices = [device._replace(gradients=0) for device in devices]
    return _cells(published, family, planned.plan, devices)


def _cells(published, family, plan, devices):
    fullest = max(devices, key=lambda device: device.total)
    planned = None if published.is_whole else max(map(_planned_bytes, plan.partitions))
    millions = sum(part.num_parameters for part in plan.partitions) / 1e6
    lasting = sum(device.weights + device.slots for device in devices) / family.unit
    activations = sum(device.waiting + device.at_work + device.temporaries for device in devices) / family.unit
    return [published.model, family.topology.partition(':')[0], len(devices),
            '-' if published.is_whole else plan.recompute, f'{published.millions:,}', f'{millions:,.1f}', published.memory,
            f'{lasting:.2f} + {activations:.2f}', f'{planned / _MIB:,.0f}' if planned else '-',
            f'{fullest.total / _MIB:,.0f}', f'{planned / fullest.total:.2f}' if planned else '-',
            f'{fullest.limit / _MIB:,.0f}', 'yes' if all(device.fits for device in devices) else 'no', _seconds(devices)]


def _planned_bytes(part):
    return part.total - ('gradient_sums' in _LEAVE_OUT.value) * part.gradients


def _seconds(devices):
    """How long the compiler took, now or when its result was kept; devices that do the same share their programs."""
    programs = {id(program): program for device in devices for program in device.programs}.values()
    return f'{sum(program.seconds for program in programs):.0f}'


def main(unused_argv):
    rows = []
    with tpu_compiler.TpuCompiler(_CACHE_DIR.value, _TIMEOUT_SECONDS.value) as compiler:
        for name in _FAMILIES.value:
            family = _TABLE[name]
            for published in family.rows:
                if _MODELS.value and published.model not in _MODELS.value:
                    continue
                rows.append(_row(compiler, published, name, family))
                print(*rows[-1], flush=True)
    left_out = ' and '.join(_LEAVE_OUT.value).replace('_', ' ') or 'nothing'
    common.report(
        common.Table(_HEADER, rows), "'all devices': weights with slots + activations, in GB (AmoebaNet) or GiB "
        f'(Transformer). Left out: {left_out}.')


if __name__ == '__main__':
    app.run(main)
