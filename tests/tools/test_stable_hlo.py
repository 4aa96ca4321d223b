import pytest
import tensorflow as tf

from lingpipe.tools import stable_hlo
from tests import needs

TEXT = """HloModule m, is_scheduled=true, input_output_alias={ {0}: (1, {}, may-alias) }, entry_computation_layout={(f32[60,100]{1,0:T(8,128)}, /*index=1*/bf16[5,3,33]{2,1,0:T(4,128)(2,1)S(1)}, pred[])->(f32[64]{0:T(256)}, s4[8,128]{1,0:T(8,128)})}, num_partitions=4

ENTRY %main {
  %p = f32[2,8]{1,0} collective-permute-start(%a), channel_id=1
  %q = f32[2,8]{1,0} collective-permute-done(%p)
  %g = (f32[4,2,8]{2,1,0}, f32[8]{0}) all-gather(%q, %r), dimensions={0}
}
"""


def test_sizes_count_the_tiles_that_a_tensor_is_stored_in():
    assert stable_hlo.entry_sizes(TEXT) == ([4 * 64 * 128, 2 * 5 * 4 * 128, 1], [4 * 256, 8 * 128 // 2])


def test_collectives_are_listed_by_kind_and_async_ones_count_once():
    found = stable_hlo.collectives(TEXT)
    assert found['collective-permute'] == ['f32[2,8]{1,0}'] and found['all-gather'] == ['(f32[4,2,8]{2,1,0}, f32[8]{0})']
    assert found['all-reduce'] == []


@needs.xla_on_cpus
@needs.stablehlo
def test_equal_functions_give_equal_text_wherever_they_are_written():
    spec = tf.TensorSpec([4])

    def first(x):
        return [x + 1.0]

    def second(other):
        return [other + 1.0]

    text = stable_hlo.lower(first, spec)
    assert text == stable_hlo.lower(tf.function(second, jit_compile=True), spec)
    assert 'loc(' not in text and 'stablehlo.add' in text


@needs.xla_on_cpus
@needs.stablehlo
def test_equal_loops_give_equal_text_despite_new_function_names():
    def loop(x):
        return tf.while_loop(lambda count, x: count < 3, lambda count, x: [count + 1, tf.sin(x)], [0, x])[1:]

    first, second = (stable_hlo.lower(loop, tf.TensorSpec([4])) for _ in range(2))
    assert first == second and 'private @function_0(' in first


@needs.xla_on_cpus
@needs.stablehlo
def test_an_open_dimension_is_refused():
    with pytest.raises(ValueError, match=r'needs every size, and got \(None, 3\). Give the batch a size'):
        stable_hlo.lower(lambda x: [x], tf.TensorSpec([None, 3]))
