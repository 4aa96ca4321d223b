"""Rows of GPipe's Table 1 from compiled figures, without the compiler."""

import pytest

from benchmarks.support import tpu_plans
from lingpipe.planner import plans
from lingpipe.tools.tpu_compile import plan_compilation, tpu_compiler
from tests import needs

MIB = 2**20
MODEL = 'Transformer3'


@pytest.fixture
def row(load_benchmark, monkeypatch):
    """Return a function that makes the row of Transformer-3 from sizes of weights, slots, sums, ..., in MiB."""
    def make(sizes, *arguments, **whole):
        benchmark = load_benchmark('tpu.gpipe_table_1', *arguments)
        program = tpu_compiler.CompiledProgram(*[0] * 6, seconds=20.0, hlo='')
        device = plan_compilation.CompiledDevice(*(size * MIB for size in sizes), '0B0 backward', False, [
            ('0F0 forward', program), ('0B0 backward', program)])
        monkeypatch.setattr(plan_compilation, 'compile_plan', lambda *unused: [device])
        published = benchmark.Published(MODEL, 282.2, '3.15 + 11.7', **whole)
        cells = benchmark._row(None, published, 'transformer_lm', benchmark._TABLE['transformer_lm'])
        assert len(cells) == len(benchmark._HEADER)
        return dict(zip(benchmark._HEADER, cells))

    return make


def planned_mib(without_sums=False):
    part, = tpu_plans.plan(f'params.transformer_lm.{MODEL}', 'v3:2x2').plan.partitions
    assert isinstance(part, plans.PartitionPlan)
    return f'{(part.total - without_sums * part.gradients) / MIB:,.0f}'


def test_a_row_has_published_planned_and_compiled_figures(row):
    cells = row((1024, 2048, 1024, 100, 200, 212, 15_000))
    assert (cells['million parameters'], cells['all devices']) == ('282.2', '3.00 + 0.50')
    assert (cells['planned MiB'], cells['compiled MiB']) == (planned_mib(), '4,608')
    assert (cells['limit MiB'], cells['fits'], cells['seconds']) == ('15,000', 'yes', '20')


@needs.xla_on_cpus
@needs.stablehlo
def test_the_model_before_gpipe_is_one_program(row, load_benchmark, short_amoebanet, monkeypatch):
    text = load_benchmark('tpu.gpipe_table_1').whole_program(
        tpu_plans.plan('params.amoebanet.AmoebaNetD18x208', 'v2:2x2', 'input.batch_size=2; input.image_size=32').params)
    assert text.startswith('module @program') and 'tensor<2x32x32x3xf32>' in text
