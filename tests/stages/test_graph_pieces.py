import keras
import numpy as np
import pytest
import tensorflow as tf

from lingpipe.layers.keras_params import KerasParams
from lingpipe.stages import graph_pieces
from tests.pipeline import small_stacks
from tests.plain_stack import make_pipe


class Cut:
    """Cuts a piece out of a traced function and runs it."""

    def __init__(self, function, *specs):
        """`function` returns (feeds, outputs), nests of tensors of its graph."""
        found = {}

        def trace(*arguments):
            found['feeds'], found['outputs'] = function(*arguments)

        self.graph = tf.function(trace, autograph=False).get_concrete_function(*specs).graph
        self._found = found
        effects = [operation for operation in self.graph.get_operations() if operation.op_def.is_stateful]
        self.piece = graph_pieces.GraphPiece(self.graph, found['feeds'], found['outputs'], effects)

    def __call__(self, *values):
        def run(values):
            fed = {feed.ref(): value for feed, value in zip(self._found['feeds'], values)}
            computed, _ = self.piece(fed)
            return [computed[tensor.ref()] for tensor in self._found['outputs']]

        self.caller = tf.function(run, autograph=False).get_concrete_function([tf.constant(value) for value in values])
        return [result.numpy() for result in self.caller([tf.constant(value) for value in values])]


SPEC = tf.TensorSpec([3])
X = np.array([1.0, -2.0, 3.0], np.float32)


def test_a_piece_takes_needed_feeds_only_and_passes_fed_outputs():
    def function(x, y, z):
        return [x, y, z], [x + 1.0, y]

    cut = Cut(function, SPEC, SPEC, SPEC)
    assert len(cut.piece.feeds) == 1 and len(cut.piece.outputs) == 1
    np.testing.assert_array_equal(cut(X, 2 * X, 3 * X), [X + 1, 2 * X])


def test_a_piece_goes_no_further_back_than_its_feeds():
    def function(x):
        costly = tf.linalg.matmul(x[:, None], x[None, :])
        return [costly], [tf.reduce_sum(costly)]

    cut = Cut(function, SPEC)
    body = cut.piece._function.graph
    assert 'MatMul' not in {operation.type for operation in body.get_operations()}
    assert cut(np.ones([3, 3], np.float32)) == [9.0]


def test_variables_and_tables_and_tensors_of_the_graph_come_along():
    variable = tf.Variable([1.0, 2.0, 3.0])
    large = tf.constant(np.arange(3000.0, dtype=np.float32))
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(tf.constant([0, 1]), tf.constant([10.0, 20.0])), -1.0)

    def function(x):
        keys = tf.constant([1, 0, 7])
        return [x], [x * variable + table.lookup(keys) + large[-3:]]

    cut = Cut(function, SPEC)
    np.testing.assert_allclose(cut(X)[0], X * [1, 2, 3] + [20, 10, -1] + [2997, 2998, 2999])
    variable.assign([0.0, 0.0, 0.0])
    np.testing.assert_allclose(cut(X)[0], [20 + 2997, 10 + 2998, -1 + 2999])


def test_side_effects_run_once_a_call(tmp_path):
    log = tmp_path / 'log'

    def function(x):
        tf.print('x is', x[0], output_stream=f'file://{log}')
        return [x], [x + 1.0]

    Cut(function, SPEC)(X)
    assert log.read_text() == 'x is 1\n'


@pytest.mark.parametrize('is_awaited', [True, False])
def test_an_assertion_inside_stops_the_program(is_awaited):
    def function(x):
        check = tf.debugging.assert_positive(x, message='not positive')
        with tf.control_dependencies([check] if is_awaited else []):
            return [x], [tf.identity(x) + 1.0]

    cut = Cut(function, SPEC)
    np.testing.assert_array_equal(cut(abs(X))[0], abs(X) + 1)
    with pytest.raises(tf.errors.InvalidArgumentError, match='not positive'):
        cut(X)


def test_a_piece_is_called_by_a_stateless_operation_and_never_inlined():
    def function(x):
        tf.print(x, output_stream='file:///dev/null')
        return [x], [x + 1.0]

    cut = Cut(function, SPEC)
    cut(X)
    calls = [operation for operation in cut.caller.graph.get_operations() if 'PartitionedCall' in operation.type]
    assert [operation.type for operation in calls] == ['PartitionedCall']
    assert cut.piece._function.function_def.attr['_noinline'].b


def layers():
    return [KerasParams(keras.layers.Conv2D, filters=4, kernel_size=3, padding='same', name='convolution'),
            KerasParams(keras.layers.MaxPooling2D, pool_size=3, strides=1, padding='same', name='pool'),
            KerasParams(keras.layers.BatchNormalization, name='norm'),
            KerasParams(keras.layers.Flatten, name='flat'), small_stacks.dense(5, name='dense')]


def operation_types(function_def):
    return {node.op for node in function_def.node_def}


@pytest.mark.parametrize('schedule', ['gpipe', '1f1b', 'zb_h1'])
def test_the_pass_with_the_gradient_of_a_max_pooling_repeats_the_pooling(schedule):
    images, labels = small_stacks.images_and_labels()
    pipe = make_pipe(layers(), num_partitions=1, num_micro_batches=2, schedule=schedule, recompute='none')
    pipe.build(images.shape)

    @tf.function(autograph=False)
    def gradients():
        return pipe.value_and_grad(small_stacks.cross_entropy, images, labels).gradients

    library = gradients.get_concrete_function().graph.as_graph_def().library
    types = [operation_types(function) for function in library.function]
    assert [found for found in types if 'MaxPoolGrad' in found]
    assert all('MaxPool' in found for found in types if 'MaxPoolGrad' in found)
