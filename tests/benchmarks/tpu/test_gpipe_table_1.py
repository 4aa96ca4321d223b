"""GPipe's Table 1, without the compiler."""


from benchmarks.support import tpu_plans
from tests import needs


@needs.xla_on_cpus
@needs.stablehlo
def test_the_model_before_gpipe_is_one_program(load_benchmark, short_amoebanet):
    text = load_benchmark('tpu.gpipe_table_1').whole_program(
        tpu_plans.plan('params.amoebanet.AmoebaNetD18x208', 'v2:2x2', 'input.batch_size=2; input.image_size=32').params)
    assert text.startswith('module @program') and 'tensor<2x32x32x3xf32>' in text
