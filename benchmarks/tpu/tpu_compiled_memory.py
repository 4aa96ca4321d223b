"""Memory that models need on the fullest device of a pipeline, as planned and by the TPU compiler.

    pip install -e '.[tpu-compile]'
    python -m benchmarks.tpu.tpu_compiled_memory --cache_dir=logs/compiled
    python -m benchmarks.tpu.tpu_compiled_memory --models=params.amoebanet.AmoebaNetD18x208 --topologies=v2:2x2 \\
        --recompute=stage,layer

This needs much time, but no TPU. Compiled programs are kept in --cache_dir, so a stopped run can resume.
Without --models the default models are compiled; GPipe's Table 1 is in `benchmarks.tpu.gpipe_table_1`.
"""

from absl import app, flags

from benchmarks.support import common, tpu_plans
from lingpipe.planner import plans
from lingpipe.tools import plan_compilation, tpu_compiler

_MODELS = flags.DEFINE_list('models', ['params.amoebanet', 'params.transformer_lm', 'params.transformer_nmt',
                                       'params.resnet50'], 'Models, as for run.py.')
_TOPOLOGIES = flags.DEFINE_list(
    'topologies', ['v3:2x2', 'v4:2x2x1', 'v5e:2x2', 'v5p:2x2x1', 'v6e:2x2'], 'TPUs to compile for.')
_RECOMPUTE = flags.DEFINE_list('recompute', [''], "Modes of recomputation; by default each model's own.")
_DTYPE_POLICY = flags.DEFINE_string('dtype_policy', None, "Precision; by default the model's own, else what TPUs train "
                                                          "with.")
_OVERRIDE = flags.DEFINE_string('model_params_override', '', 'Changes of all models, as for run.py.')
_FAST = flags.DEFINE_bool('fast', False, 'Whether the compiler optimises less; it then asks for more temporaries.')
_TIMEOUT_SECONDS = flags.DEFINE_integer('timeout_seconds', 600, 'How long one program may take.')
_CACHE_DIR = flags.DEFINE_string('cache_dir', None, 'Folder that keeps what was compiled.')
_HEADER = ['model', 'K', 'M', 'recompute', 'topology', 'weights', 'slots', 'gradients', 'activations', 'total',
           'temporaries', 'limit', 'fits', 'fullest in', 'programs', 'seconds']
_MIB = 2**20


def _row(compiler, model, recompute, topology):
    planned = tpu_plans.plan(model, topology, _OVERRIDE.value, recompute, _DTYPE_POLICY.value)
    schedule = planned.plan.schedule
    start = [model.removeprefix('params.'), schedule.num_devices, schedule.num_micro_batches, planned.plan.recompute,
             topology]
    try:
        devices = plan_compilation.compile_plan(planned, compiler, topology, _FAST.value)
    except tpu_compiler.TpuCompileError as error:
        return [*start, *['-'] * (len(_HEADER) - len(start))], f'{model}, {planned.plan.recompute}, {topology}: {error}'
    fullest = max(devices, key=lambda device: device.total)
    return [*start, *_sizes(planned.plan, devices.index(fullest), fullest), _mib(fullest.temporaries),
            _mib(fullest.limit), 'yes' if all(device.fits for device in devices) else 'no', fullest.moment,
            *_compilation(devices)], None


def _sizes(plan, index, device):
    """Return planned and compiled bytes of a device by kind, and of all kinds."""
    parts = [part for stage, part in enumerate(plan.partitions) if plan.schedule.device_of(stage) == index]
    *planned, boundary, working = [sum(getattr(part, kind) for part in parts) for kind in plans.KINDS]
    planned += [boundary + working, sum(part.total for part in parts)]
    compiled = [device.weights, device.slots, device.gradients, device.waiting + device.at_work + device.temporaries,
                device.total]
    return [f'{_mib(one)} / {_mib(other)}' for one, other in zip(planned, compiled)]


def _compilation(devices):
    """Return the number of different programs and the seconds that the compiler took for them, now or when they were
    kept."""
    programs = {id(program): program for device in devices for program in device.programs}.values()
    return len(programs), f'{sum(program.seconds for program in programs):.0f}'


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
    common.report('MiB of the fullest device, planned / compiled; the temporaries of its program are activations.',
                  common.Table(_HEADER, rows), *reasons)


if __name__ == '__main__':
    app.run(main)
