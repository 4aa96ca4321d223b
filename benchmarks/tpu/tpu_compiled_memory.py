"""What each model needs on the fullest device of a pipeline, as planned and by the TPU compiler; by default the default
models.

    pip install -e '.[tpu-compile]'
    python -m benchmarks.tpu.tpu_compiled_memory --cache_dir=logs/compiled
    python -m benchmarks.tpu.tpu_compiled_memory --models=params.amoebanet.AmoebaNetD18x208 --topologies=v2:2x2 \\
        --recompute=stage,layer

No TPU is needed, but much time. What was compiled is kept in --cache_dir, so that a run which was stopped goes on.
"""

from absl import app, flags

import lingpipe
from benchmarks.support import common
from lingpipe import hyperparams, model_registry
from lingpipe.placements import tpu_system
from lingpipe.planner import plans
from lingpipe.tools.tpu_compile import plan_compilation, tpu_compiler

_MODELS = flags.DEFINE_list('models', ['params.amoebanet', 'params.transformer_lm', 'params.transformer_nmt',
                                       'params.resnet50'], 'Models, as for run.py.')
_TOPOLOGIES = flags.DEFINE_list('topologies', ['v3:2x2', 'v4:2x2x1', 'v5e:2x2', 'v5p:2x2x1', 'v6e:2x2'],
    'TPUs to compile for.')
_RECOMPUTE = flags.DEFINE_list('recompute', [''], "Modes of recomputation; by default each model's own.")
_DTYPE_POLICY = flags.DEFINE_string('dtype_policy', None, "Precision; by default the model's own, else what TPUs train "
                                                          "with.")
_OVERRIDE = flags.DEFINE_string('model_params_override', '', 'Changes of all models, as for run.py.')
_FAST = flags.DEFINE_bool('fast', False, 'Whether the compiler optimises less; it then asks for more temporaries.')
_TIMEOUT_SECONDS = flags.DEFINE_integer('timeout_seconds', 600, 'How long one program may take.')
_CACHE_DIR = flags.DEFINE_string('cache_dir', None, 'Folder that keeps what was compiled.')
# GB (AmoebaNet) or GiB (Transformer) of parameters with optimizer + activations. The table has the two of Transformer-3
# in each
# other's place.
_PUBLISHED = {
    'params.amoebanet.AmoebaNetD18x208': '1.05 + 6.26', 'params.amoebanet.AmoebaNetD18x416': '3.8 + 3.46',
    'params.amoebanet.AmoebaNetD18x544': '6.45 + 8.11', 'params.amoebanet.AmoebaNetD36x544': '12.53 + 15.21',
    'params.amoebanet.AmoebaNetD72x512': '24.62 + 26.24', 'params.transformer_lm.Transformer3': '3.15 + 11.7',
    'params.transformer_lm.Transformer13': '8.8 + 6.4', 'params.transformer_lm.Transformer103': '59.5 + 50.9'}
_HEADER = ['model', 'K', 'M', 'recompute', 'topology', 'weights', 'slots', 'gradients', 'activations', 'total',
           'temporaries', 'limit',
           'fits', 'fullest in', 'programs', 'seconds']
_MIB = 2**20


def plan(model, recompute, topology):
    """Returns the `Planned` of a model for devices of a topology.

    Args:
        model: name of a model, as for run.py.
        recompute: mode of recomputation; '': the model's own.
        topology: name of the topology.
    """
    params = model_registry.GetParams(model, 'Train')
    hyperparams.ApplyOverrides(params, _OVERRIDE.value)
    params.task.body.recompute = recompute or params.task.body.recompute
    params.task.dtype_policy = _DTYPE_POLICY.value or params.task.dtype_policy
    if params.input.Get('dataset').startswith('imagenet'):
        params.input.num_channels = 3  # else the dataset would be asked
    return lingpipe.plan(tpu_system.with_defaults(params), topology.split(':')[0])


def _row(compiler, model, recompute, topology):
    planned = plan(model, recompute, topology)
    schedule = planned.plan.schedule
    start = [model.removeprefix('params.'), schedule.num_devices, schedule.num_micro_batches, planned.plan.recompute,
             topology]
    try:
        devices = plan_compilation.compile_plan(planned, compiler, topology, _FAST.value)
    except tpu_compiler.TpuCompileError as error:
        return [*start, *['-'] * (len(_HEADER) - len(start))], f'{model}, {planned.plan.recompute}, {topology}: {error}'
    fullest = max(devices, key=lambda device: device.total)
    return [*start, *_sizes(planned.plan, devices.index(fullest), fullest), _mib(fullest.temporaries),
            _mib(fullest.limit),
            'yes' if all(device.fits for device in devices) else 'no', fullest.moment, *_compilation(devices)], None


def _sizes(plan, index, device):
    """Returns planned and compiled bytes of a device by kind, and of all kinds."""
    parts = [part for stage, part in enumerate(plan.partitions) if plan.schedule.device_of(stage) == index]
    *planned, boundary, working = [sum(getattr(part, kind) for part in parts) for kind in plans.KINDS]
    planned += [boundary + working, sum(part.total for part in parts)]
    compiled = [device.weights, device.slots, device.gradients, device.waiting + device.at_work + device.temporaries,
                device.total]
    return [f'{_mib(one)} / {_mib(other)}' for one, other in zip(planned, compiled)]


def _compilation(devices):
    """Returns the number of different programs and the seconds that the compiler took for them, now or when they were
    kept."""
    programs = {id(program): program for device in devices for _, program in device.programs}.values()
    return len(programs), f'{sum(getattr(program, "seconds", 0) for program in programs):.0f}'


def _mib(num_bytes):
    return f'{num_bytes / _MIB:,.1f}'


def main(unused_argv):
    rows, reasons = [], []
    with tpu_compiler.TpuCompiler(_CACHE_DIR.value, _TIMEOUT_SECONDS.value) as compiler:
        for model in _MODELS.value:
            for recompute in _RECOMPUTE.value:
                for topology in _TOPOLOGIES.value:
                    row, reason = _row(compiler, model, recompute, topology)
                    rows.append(row)
                    reasons += [reason] if reason else []
                    print(*row, reason or '', flush=True)
    published = [f'{model}: published {_PUBLISHED[model]} over all devices (GPipe, arXiv 1811.06965, Table 1).'
                 for model in _MODELS.value if model in _PUBLISHED]
    common.report('MiB of the fullest device, planned / compiled; the temporaries of its program are activations.',
                  common.markdown_table(_HEADER, rows), *reasons, *published)


if __name__ == '__main__':
    app.run(main)
