import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from lingpipe.layers.keras_params import KerasParams


def dense_layers():
    return [KerasParams(keras.layers.Dense, units=8, activation='tanh', name=f'dense_{index}') for index in range(4)]


def batch(num_rows=8):
    random = np.random.default_rng(0)
    return random.normal(size=(num_rows, 8)).astype('float32'), random.normal(size=(num_rows, 8)).astype('float32')


def squared_error(y_true, y):
    return tf.reduce_mean(tf.square(y_true - y), -1)


@pytest.mark.parametrize('schedule', ['gpipe', '1f1b', 'zb_h1'])
@pytest.mark.parametrize('recompute', ['none', 'stage', 'layer'])
def test_compiled_partitions_equal_the_plain_layers(schedule, recompute, make_pipe, PlainStack, assert_close):
    if schedule == 'zb_h1' and recompute == 'layer':
        recompute = 'none'
    x, y = batch(32)
    layers = [KerasParams(keras.layers.BatchNormalization, name='norm'), *dense_layers()]
    pipe = make_pipe(
        layers, schedule=schedule, recompute=recompute, num_partitions=2, num_micro_batches=4, jit_compile=True)
    pipe(x)
    plain = PlainStack(pipe, x)
    out = pipe.value_and_grad(squared_error, x, y, return_outputs=True)
    loss, gradients, outputs = plain.value_and_grad(squared_error, x, y, 4)
    assert_close((out.loss, out.outputs, out.gradients), (loss, outputs, gradients))
    assert_close([w.numpy() for layer in pipe.stack for w in layer.weights], [w.numpy() for w in plain.weights])


def test_compiled_partitions_take_a_batch_that_the_micro_batches_do_not_divide(make_pipe, PlainStack, assert_close):
    x, y = batch(7)
    pipe = make_pipe(dense_layers(), num_partitions=2, num_micro_batches=4, jit_compile=True)
    pipe(x)
    loss, gradients, _ = PlainStack(pipe, x).value_and_grad(squared_error, x, y, 4)
    out = pipe.value_and_grad(squared_error, x, y)
    assert_close((out.loss, out.gradients), (loss, gradients))


def test_every_function_of_a_stage_is_marked_for_xla(make_pipe):
    assert all(compiled_calls(make_pipe, jit_compile=True))


def test_without_jit_compile_nothing_is_marked_for_xla(make_pipe):
    assert not any(compiled_calls(make_pipe, jit_compile=False))


def compiled_calls(make_pipe, jit_compile):
    """For each call of a stage's function, whether the function inside is for XLA to compile."""
    x, y = batch()
    pipe = make_pipe(dense_layers(), num_partitions=2, num_micro_batches=2, jit_compile=jit_compile)
    pipe(x)
    graph = tf.function(lambda: pipe.value_and_grad(squared_error, x, y).gradients).get_concrete_function().graph
    library = {function.signature.name: function for function in graph.as_graph_def().library.function}
    calls = [library[operation.get_attr('f').name] for operation in graph.get_operations()
             if operation.type == 'PartitionedCall' and 'stage_' in operation.get_attr('f').name]
    assert len(calls) == 2 * 2 * 2 + 2
    return [any(node.attr['_XlaMustCompile'].b for node in function.node_def) for function in calls]


@pytest.mark.parametrize('recompute', ['stage', 'layer'])
def test_in_a_step_compiled_as_one_program_recomputation_stands_behind_a_barrier(recompute, make_pipe):
    kept, recomputed = whole_program(make_pipe, 'none'), whole_program(make_pipe, recompute)
    assert count('dot', recomputed) > count('dot', kept)
    assert count('opt-barrier', recomputed) and not count('opt-barrier', kept)


def whole_program(make_pipe, recompute):
    """Returns what XLA is given for a step of one partition; its CPU compiler, unlike that of TPUs, ignores barriers."""
    x, y = batch()
    pipe = make_pipe(dense_layers(), num_micro_batches=2, recompute=recompute, jit_compile=True, devices=['CPU:0'])
    pipe(x)
    step = tf.function(
        lambda x, y: pipe.value_and_grad(squared_error, x, y, step=0).gradients, jit_compile=True, autograph=False)
    return step.experimental_get_compiler_ir(tf.constant(x), tf.constant(y))(stage='hlo')


def count(operation, program):
    return len(re.findall(rf' {operation}\(', program))
