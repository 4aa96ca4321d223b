import pytest
import tensorflow as tf

from lingpipe.tools.tpu_compile import stable_hlo
from tests import needs

pytestmark = [needs.xla_on_cpus, needs.stablehlo]


def test_equal_functions_give_equal_text_wherever_they_are_written():
    spec = tf.TensorSpec([4])

    def first(x):
        return [x + 1.0]

    def second(other):
        return [other + 1.0]

    text = stable_hlo.lower(first, spec)
    assert text == stable_hlo.lower(tf.function(second, jit_compile=True), spec)
    assert 'loc(' not in text and 'stablehlo.add' in text


def test_equal_loops_give_equal_text_despite_new_function_names():
    def loop(x):
        return tf.while_loop(lambda count, x: count < 3, lambda count, x: [count + 1, tf.sin(x)], [0, x])[1:]

    first, second = (stable_hlo.lower(loop, tf.TensorSpec([4])) for _ in range(2))
    assert first == second and 'private @function_0(' in first


def test_an_open_dimension_is_refused():
    with pytest.raises(ValueError, match=r'needs every size, and got \(None, 3\). Give the batch a size'):
        stable_hlo.lower(lambda x: [x], tf.TensorSpec([None, 3]))
