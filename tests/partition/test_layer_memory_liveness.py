import tensorflow as tf

from lingpipe.partition import layer_memory

SIZE = 4 * 10


def fullest(function, *shapes):
    """Bytes of the fullest moment of a function of tensors, arguments aside."""
    graph = tf.function(function, autograph=False).get_concrete_function(*map(tf.TensorSpec, shapes)).graph
    inputs = {tensor.op for tensor in graph.inputs}
    results = [tensor.op.inputs[0] for tensor in graph.outputs]
    return layer_memory.fullest_moment(
        [operation for operation in graph.get_operations() if operation not in inputs], results)


def test_a_chain_in_place_takes_one_tensor_and_others_two():
    assert fullest(lambda x: tf.tanh(tf.exp(tf.sqrt(x))), [10]) == SIZE
    assert fullest(lambda x: tf.nn.softplus(tf.cumsum(tf.cumsum(x))), [10]) == 2 * SIZE + 4  # and the other axis


def test_what_is_read_later_is_not_overwritten():
    def function(x):
        first = tf.exp(x)
        return tf.tanh(first) * first

    assert fullest(function, [10]) == 2 * SIZE


def test_views_take_nothing():
    assert fullest(lambda x: tf.identity(tf.stop_gradient(tf.exp(x))), [10]) == SIZE


def test_equal_operations_run_once():
    assert fullest(lambda x: (tf.exp(x), tf.exp(x), tf.tanh(x)), [10]) == 2 * SIZE


def test_branches_are_walked_side_by_side():
    assert fullest(lambda x: tf.add_n([tf.exp(x), tf.tanh(x), tf.sqrt(x)]), [10]) == 3 * SIZE


def test_results_stay():
    assert fullest(lambda x: [tf.reverse(tf.exp(x), [0]), tf.exp(x)], [10]) == 2 * SIZE + 4
