"""Which replicas a program adds up over, in the compiler's words and in StableHLO."""

import tensorflow as tf

from lingpipe.tools.tpu_compile import stable_hlo
from tests import needs

HLO = '''
  %a = f32[8]{0} all-reduce(%x), replica_groups={{0,1},{2,3}}, to_apply=%add
  %b = (f32[8]{0}, f32[2]{0}) all-reduce-start(%x, %y), replica_groups={{0,1,2,3}}, to_apply=%add
  %c = f32[8]{0} all-reduce(%x), replica_groups={{0,1},{2,3}}, to_apply=%add
  %d = f32[8]{0} all-reduce(%x), replica_groups={}, to_apply=%add, config={{4}}
  %e = f32[8]{0} add(%x, %x)
'''


def test_sums_are_counted_by_groups(load_benchmark):
    benchmark = load_benchmark('tpu.replica_groups')
    assert benchmark.sums_by_group(HLO, 4) == {(2, 2): 2, (1, 4): 2}


@needs.xla_on_cpus
@needs.stablehlo
def test_a_sum_and_its_gradient_run_over_a_group(load_benchmark):
    replicas = load_benchmark('tpu.replica_groups').Replicas(4)

    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(tf.square(replicas.sum_inside_program(x, 2)))
        return replicas.sum('CPU:0', tape.gradient(y, x))

    text = stable_hlo.lower(step, tf.TensorSpec([3]))
    assert 'dense<[[0, 1], [2, 3]]>' in text and 'dense<[[0, 1, 2, 3]]>' in text
