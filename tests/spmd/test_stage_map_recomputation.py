import numpy as np
import tensorflow as tf

from lingpipe.spmd.stage_map import recomputing
from tests import needs

pytestmark = needs.xla_on_cpus


def test_recomputed_gradients_equal_those_of_the_function(assert_close):
    """The function may also take integers and return what gets no gradient."""
    def function(tensors):
        count, x, y = tensors
        return [tf.cast(x > 0, tf.int32), tf.sin(x) * y * tf.cast(count, tf.float32), y + 0.0]

    @tf.function(jit_compile=True, autograph=False)
    def gradients(apply, count, x, y):
        with tf.GradientTape() as tape:
            tape.watch([x, y])
            _, product, _ = apply([count, x, y])  # no gradient comes to the last output
            total = tf.reduce_sum(product**2)
        return tape.gradient(total, [x, y])

    x, y = np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32)
    arguments = [tf.constant(2), tf.constant(x), tf.constant(y)]
    assert_close(gradients(recomputing(function), *arguments), gradients(function, *arguments))
