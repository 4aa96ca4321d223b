"""Planned and compiled figures side by side, without the compiler."""

import types

import pytest

from lingpipe import schedules
from lingpipe.planner import plans
from lingpipe.tools.tpu_compile import plan_compilation, tpu_compiler

MIB = 2**20


@pytest.fixture
def benchmark(load_benchmark, monkeypatch):
    benchmark = load_benchmark('tpu.tpu_compiled_memory')
    parts = [
        plans.PartitionPlan([], 0, 0, *(size * MIB * (stage + 1) for size in (1, 2, 3, 4, 5))) for stage in range(2)]
    plan = types.SimpleNamespace(schedule=schedules.gpipe(2, 4), recompute='stage', partitions=parts)
    monkeypatch.setattr(benchmark.tpu_plans, 'plan', lambda *unused: types.SimpleNamespace(plan=plan))
    return benchmark


def test_the_fullest_device_is_shown_and_equal_programs_count_once(benchmark, monkeypatch):
    program = tpu_compiler.CompiledProgram(*[0] * 6, seconds=20.0, hlo='')
    devices = [plan_compilation.CompiledDevice(
        *(size * MIB for size in (1, 2, 3, 4, 5, temporaries, 100)), '1F3 forward', False, [('0F0 forward', program)])
        for temporaries in (6, 7)]
    monkeypatch.setattr(plan_compilation, 'compile_plan', lambda *unused: devices)
    row, reason = benchmark._row(None, 'params.some', 'stage', 'v5e:2x2')
    cells = dict(zip(benchmark._HEADER, row, strict=True))
    assert reason is None
    assert (cells['weights'], cells['activations'], cells['total']) == ('2.0 / 1.0', '18.0 / 16.0', '30.0 / 22.0')
    assert (cells['temporaries'], cells['fits'], cells['programs'], cells['seconds']) == ('7.0', 'yes', 1, '20')
