"""Table 1 of GPipe (arXiv 1811.06965) by the TPU compiler: what each of its models needs on the fullest device.

    python benchmarks/tpu_compiled_memory.py --models=AmoebaNetD18x208,AmoebaNetD18x416 --cache_dir=logs/compiled

No TPU is needed, but much time. What was compiled is kept in --cache_dir, so that a run which was stopped goes on.
"""

import time

import common
from absl import app, flags

import lingpipe
from lingpipe import model_registry
from lingpipe.planner import tpu_compiler
from lingpipe.training import plan_compilation

_MODELS = flags.DEFINE_list('models', ['AmoebaNetD18x208'], 'Models, each a key of the table of published numbers.')
_RECOMPUTE = flags.DEFINE_list('recompute', ['none', 'stage', 'layer'], 'Modes of recomputation.')
_CACHE_DIR = flags.DEFINE_string('cache_dir', None, 'Folder that keeps what was compiled.')
# Topology; GB (AmoebaNet) or GiB (Transformer) of parameters with optimizer and of activations, over all devices.
# Table 1 has the two of Transformer3 in each other's place.
_PUBLISHED = {
    'AmoebaNetD18x208': ('v2:2x2', '1.05 + 6.26'), 'AmoebaNetD18x416': ('v2:2x2', '3.8 + 3.46'),
    'AmoebaNetD18x544': ('v2:2x2', '6.45 + 8.11'), 'AmoebaNetD36x544': ('v2:2x2', '12.53 + 15.21'),
    'AmoebaNetD72x512': ('v2:2x2', '24.62 + 26.24'), 'Transformer3': ('v3:2x2', '3.15 + 11.7'), 'Transformer13': ('v3:2x2', '8.8 + 6.4'),
    'Transformer103': ('v3:2x2', '59.5 + 50.9')}
_GIB = 2**30


def _row(model, recompute):
    topology, published = _PUBLISHED[model]
    family = 'amoebanet' if model.startswith('Amoeba') else 'transformer_lm'
    params = model_registry.GetParams(f'params.{family}.{model}', 'Train')
    params.task.body.recompute = recompute
    if 'num_channels' in params.input:
        params.input.num_channels = 3  # else the dataset would be asked
    planned = lingpipe.plan(params, topology.split(':')[0])
    begin = time.perf_counter()
    with tpu_compiler.TpuCompiler(_CACHE_DIR.value) as compiler:
        devices = plan_compilation.compile_plan(planned, compiler, topology)
    fullest = max(devices, key=lambda device: device.total)
    sizes = [fullest.weights, fullest.slots, fullest.gradients, fullest.waiting, fullest.at_work, fullest.temporaries, fullest.total]
    return [model, len(devices), recompute, topology, published, f'{max(planned.plan.device_bytes) / _GIB:.2f}',
            *(f'{size / _GIB:.2f}' for size in sizes), f'{fullest.limit / _GIB:.2f}',
            'yes' if all(device.fits for device in devices) else 'no', fullest.moment, f'{time.perf_counter() - begin:.0f}']


def main(unused_argv):
    rows = []
    for model in _MODELS.value:
        for recompute in _RECOMPUTE.value:
            rows.append(_row(model, recompute))
            print(*rows[-1], flush=True)
    common.report(common.markdown_table(
        ['model', 'K', 'recompute', 'topology', 'published, all devices', 'planned GiB', 'weights', 'slots', 'gradient sums',
         'waiting', 'at work', 'temporaries', 'total GiB', 'limit GiB', 'fits', 'fullest in', 'seconds'], rows))


if __name__ == '__main__':
    app.run(main)
