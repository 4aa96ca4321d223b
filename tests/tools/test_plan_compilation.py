import contextlib

import pytest

from lingpipe import model_registry
from lingpipe.layers import batch_normalization, keras_params, transformer
from lingpipe.tools import plan_compilation
from lingpipe.training import planning
from tests import needs


@pytest.fixture
def params():
    p = model_registry.GetParams('params.transformer_lm', 'Train')
    p.input.Set(batch_size=4, sequence_length=8)
    p.task.body.Set(num_partitions=2, num_micro_batches=2, recompute='stage', tpu_route='spmd',
                    layers=transformer.transformer_lm_layers(2, 256, 128, 128, 2))
    return p


@needs.tpu_compiler
def test_one_program_for_all_cores_is_compiled_and_reported(params, tmp_path):
    report = plan_compilation.compiled_report(planning.plan(params, 'v5e'), 'v5e:2x2', tmp_path)
    assert report.startswith("tpu_route='spmd'.\n\n") and 'it fits on cores of v5e:2x2' in report
    header, _, row = [line.split('  ') for line in report.splitlines()[2:5]]
    cells = dict(zip(filter(None, map(str.strip, header)), filter(None, map(str.strip, row))))
    assert int(cells['collective-permute']) > 0
    assert float(cells['compiled MiB']) == pytest.approx(
        float(cells['weights, slots, batch']) + float(cells['temporaries']), abs=0.2)


@pytest.mark.parametrize('route', ['auto', 'spmd', 'stage_programs'])
@pytest.mark.parametrize('topology, body, message', [
    ('v5e:1x1', {}, "num_partitions=2 is more than the 1 device that .*'v5e:1x1'. Set it to 1 or less, or .* to 'v5e:2x2'"),
    ('v5e:2x2', {'num_replicas': 4, 'num_micro_batches': 1},
     "num_partitions=2 times num_replicas=4 is more than the 4 .* product to 4 or less, or tpu_topology to 'v5e:2x4'"),
    ('v4:2x2x1', {'num_partitions': 5}, "num_partitions=5 is more than the 4 .* or tpu_topology to 'v4:2x2x2'"),
], ids=['partitions', 'replicas', 'chips of two compiler devices'])
def test_what_finds_no_room_on_the_topology_is_refused(topology, body, message, route, params):
    params.task.body.Set(tpu_route=route, **body)
    with pytest.raises(ValueError, match=message):
        plan_compilation.compiled_report(planning.plan(params, 'v5e'), topology)


def test_what_training_refuses_is_not_said_to_fit(params):
    norm = keras_params.KerasParams(batch_normalization.BatchNormalization, group_size=2)
    params.task.body.Set(layers=[*params.task.body.layers[:-1], norm, params.task.body.layers[-1]],
                         tpu_route='stage_programs', num_replicas=2, num_micro_batches=1)
    with pytest.raises(ValueError, match="group_size=2.*'stage_programs' runs each of num_replicas=2 as programs of its own"):
        plan_compilation.compiled_report(planning.plan(params, 'v5e'), 'v5e:2x2')
    params.task.body.Set(tpu_route='auto', num_partitions=1)
    with pytest.raises(ValueError, match="'auto' finds no route on 4 cores"):
        plan_compilation.compiled_report(planning.plan(params, 'v5e'), 'v5e:2x2')


def test_compiled_functions_take_the_batch_share_of_one_replica(params, monkeypatch):
    params.task.body.Set(num_replicas=2, num_micro_batches=1, tpu_route='stage_programs')
    steps = []
    monkeypatch.setattr(plan_compilation, 'compile_stages', lambda step, *unused: steps.append(step))
    plan_compilation.compile_plan(planning.plan(params, 'v5e'), None, 'v5e:2x2')
    forward = [call.operation for call in steps[0].calls if call.name == 'forward']
    assert [{tensor.shape[0] for tensor in operation.inputs if tensor.dtype == 'int32'}
            for operation in forward][0] == {2}


@pytest.mark.parametrize('route, changes, compiled, sentence', [
    ('auto', {}, 'spmd', "'auto': tpu_route='spmd'. One program for all cores."),
    ('auto', {'schedule': '1f1b'}, 'stage_programs', "'auto': tpu_route='stage_programs'. 'spmd' would not do: "
                                                     "schedule='1f1b'"),
    ('stage_programs', {}, 'stage_programs', "tpu_route='stage_programs'."),
    ('logical_cores', {}, 'stage_programs', "tpu_route='logical_cores': its program is not compiled here."),
])
def test_the_route_of_a_training_run_is_compiled_and_reported(route, changes, compiled, sentence, params, monkeypatch):
    params.task.body.Set(tpu_route=route, **changes)
    monkeypatch.setattr(plan_compilation.tpu_compiler, 'TpuCompiler', lambda cache_dir: contextlib.nullcontext())
    monkeypatch.setattr(plan_compilation, 'compile_program', lambda params, *unused: params.task.body.tpu_route)
    monkeypatch.setattr(plan_compilation, 'report_of_program', lambda plan, program, topology: program)
    monkeypatch.setattr(plan_compilation, 'compile_plan', lambda *unused: 'stage_programs')
    monkeypatch.setattr(plan_compilation, 'report', lambda plan, devices, topology: devices)
    told, found = plan_compilation.compiled_report(planning.plan(params, 'v5e'), 'v5e:2x2').split('\n\n')
    assert found == compiled
    assert told.startswith(sentence)
