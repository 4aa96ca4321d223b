import pytest
import tensorflow as tf

from lingpipe.partition import layer_memory

SIZE = 4 * 10


def read_later(x):
    first = tf.exp(x)
    return tf.tanh(first) * first


@pytest.mark.parametrize('function, num_bytes', [
    pytest.param(lambda x: tf.tanh(tf.exp(tf.sqrt(x))), SIZE, id='a chain works in place'),
    pytest.param(lambda x: tf.nn.softplus(tf.cumsum(tf.cumsum(x))), 2 * SIZE + 4, id='others take two, and their axis'),
    pytest.param(read_later, 2 * SIZE, id='what is read later is not overwritten'),
    pytest.param(lambda x: tf.identity(tf.stop_gradient(tf.exp(x))), SIZE, id='views take nothing'),
    pytest.param(lambda x: (tf.exp(x), tf.exp(x), tf.tanh(x)), 2 * SIZE, id='equal operations run once'),
    pytest.param(lambda x: tf.add_n([tf.exp(x), tf.tanh(x), tf.sqrt(x)]), 3 * SIZE, id='branches go side by side'),
    pytest.param(lambda x: [tf.reverse(tf.exp(x), [0]), tf.exp(x)], 2 * SIZE + 4, id='results stay')])
def test_the_fullest_moment_of_a_function_besides_its_argument(function, num_bytes):
    graph = tf.function(function, autograph=False).get_concrete_function(tf.TensorSpec([10])).graph
    operations = [operation for operation in graph.get_operations() if operation is not graph.inputs[0].op]
    assert layer_memory.fullest_moment(operations, [tensor.op.inputs[0] for tensor in graph.outputs]) == num_bytes
