import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from lingpipe import GPipeLayer
from lingpipe.layers.keras_params import KerasParams
from lingpipe.stages import stage_program
from tests import needs
from tests.plain_stack import PlainStack, make_pipe

pytestmark = needs.xla_on_cpus


def dense_layers():
    return [KerasParams(keras.layers.Dense, units=8, activation='tanh', name=f'dense_{index}') for index in range(4)]


def batch(num_rows=8):
    random = np.random.default_rng(0)
    return random.normal(size=(num_rows, 8)).astype('float32'), random.normal(size=(num_rows, 8)).astype('float32')


def squared_error(y_true, y):
    return tf.reduce_mean(tf.square(y_true - y), -1)


@pytest.mark.parametrize('schedule, recompute', [
    ('gpipe', 'layer'), ('1f1b', 'none'), ('zb_h1', 'stage'), ('gpipe', 'selective'), ('zb_h1', 'selective')])
def test_compiled_partitions_equal_the_plain_layers(schedule, recompute, assert_close, assert_gradients_close):
    x, y = batch(32)
    layers = [KerasParams(keras.layers.BatchNormalization, name='norm'), *dense_layers()]
    pipe = make_pipe(
        layers, schedule=schedule, recompute=recompute, num_partitions=2, num_micro_batches=4, jit_compile=True)
    plain = PlainStack(pipe, x)
    out = pipe.value_and_grad(squared_error, x, y, return_outputs=True)
    loss, gradients, outputs = plain.value_and_grad(squared_error, x, y, 4)
    assert_close((out.loss, out.outputs), (loss, outputs))
    assert_gradients_close(out.gradients, gradients)
    assert_close([w.numpy() for layer in pipe.stack for w in layer.weights], [w.numpy() for w in plain.weights])


def test_compiled_partitions_take_an_uneven_batch(assert_close, assert_gradients_close):
    x, y = batch(7)
    pipe = make_pipe(dense_layers(), num_partitions=2, num_micro_batches=4, jit_compile=True)
    loss, gradients, _ = PlainStack(pipe, x).value_and_grad(squared_error, x, y, 4)
    out = pipe.value_and_grad(squared_error, x, y)
    assert_close(out.loss, loss)
    assert_gradients_close(out.gradients, gradients)


@pytest.mark.parametrize('recompute',
                         ['none', 'selective', 'layer'])  # a loop's lists from program to program; sizes known to XLA alone
def test_loops_train_where_xla_compiles_what_it_can(recompute, assert_close, assert_gradients_close):
    x, y = np.random.default_rng(0).normal(size=(2, 7, 3, 2)).astype('float32')
    layers = [KerasParams(keras.layers.LSTM, units=2, return_sequences=True, name=name) for name in 'ab']
    pipe = make_pipe(
        layers, num_partitions=2, num_micro_batches=2, schedule='1f1b', recompute=recompute, jit_compile=True)
    loss, gradients, _ = PlainStack(pipe, x).value_and_grad(squared_error, x, y, 2)
    out = pipe.value_and_grad(squared_error, x, y)
    assert_close(out.loss, loss)
    assert_gradients_close(out.gradients, gradients)


def test_selective_recomputation_takes_any_number_of_rows(assert_close):
    inputs = keras.Input([4, 3])
    hidden = keras.layers.LayerNormalization()(keras.layers.Dense(4, activation='tanh')(inputs))
    hidden = keras.layers.Dense(4, activation='tanh')(keras.layers.Flatten()(hidden))
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    x = np.random.default_rng(0).normal(size=(7, 4, 3)).astype('float32')
    loss = keras.losses.MeanSquaredError()
    with tf.GradientTape() as tape:
        value = loss(x[:, 0, :1], model(x))
    expected = value, tape.gradient(value, [variable.value for variable in model.trainable_variables])
    pipe = GPipeLayer.from_keras(model, num_partitions=2, num_micro_batches=2, recompute='selective', jit_compile=True)
    out = of_any_rows(pipe, loss)(x, x[:, 0, :1])
    assert_close(out, expected)


def of_any_rows(pipe, loss):
    """A step that does not know how many rows there are."""
    specs = [tf.TensorSpec([None, 4, 3]), tf.TensorSpec([None, 1])]

    def step(x, y):
        out = pipe.value_and_grad(loss, x, y)
        return out.loss, out.gradients

    return tf.function(step, specs, autograph=False)


def test_every_function_of_a_stage_is_marked_for_xla():
    calls = compiled_calls(make_pipe, jit_compile=True)
    assert all(calls) and len(calls) == 2 * 2 * 2


def test_without_jit_compile_nothing_is_marked_for_xla():
    calls = compiled_calls(make_pipe, jit_compile=False)
    assert not any(calls) and len(calls) == 2 * 2 * 2 + 2  # recomputations are calls of their own


def compiled_calls(make_pipe, jit_compile):
    """For each call of a stage's function, whether the function inside is for XLA to compile."""
    graph, calls = stage_calls(make_pipe(dense_layers(), num_partitions=2, num_micro_batches=2, jit_compile=jit_compile))
    library = {function.signature.name: function for function in graph.as_graph_def().library.function}
    return [any(node.attr['_XlaMustCompile'].b for node in library[function_name(call)].node_def) for call in calls]


def stage_calls(pipe):
    """Returns the graph of a step, and its calls of functions of stages."""
    x, y = batch()
    pipe.build(x.shape)
    graph = tf.function(lambda: pipe.value_and_grad(squared_error, x, y).gradients).get_concrete_function().graph
    return graph, [operation for operation in graph.get_operations()
                   if operation.type == 'PartitionedCall' and 'stage_' in function_name(operation)]


def function_name(call):
    return call.get_attr('f').name


def test_a_compiled_stage_recomputes_in_its_backward_function():
    """It recomputes from what entered the stage."""
    _, calls = stage_calls(make_pipe(dense_layers(), num_partitions=2, num_micro_batches=2, jit_compile=True))
    inputs, weights, targets, gradients = 1, 2 * 2, 1, 1
    sizes = sorted(len(call.inputs) for call in calls if 'backward_from_inputs' in function_name(call))
    assert sizes == [inputs + 2 * weights + gradients, inputs + 2 * weights + gradients + targets]


def test_too_many_residuals_for_a_tpu_are_recomputed(assert_close, assert_gradients_close, monkeypatch):
    """That holds even where the backward action follows right after the forward action."""
    monkeypatch.setattr(stage_program, 'MOST_TPU_PARAMETERS', 10)
    pipe = make_pipe(dense_layers(), num_partitions=2, num_micro_batches=2, jit_compile=True)
    _, calls = stage_calls(pipe)
    assert len([call for call in calls if 'backward_from_inputs' in function_name(call)]) == 2 * 2
    x, y = batch()
    loss, gradients, _ = PlainStack(pipe, x).value_and_grad(squared_error, x, y, 2)
    out = pipe.value_and_grad(squared_error, x, y)
    assert_close(out.loss, loss)
    assert_gradients_close(out.gradients, gradients)


@pytest.mark.parametrize('recompute', ['stage', 'layer'])
def test_recomputation_in_one_program_stands_behind_a_barrier(recompute):
    kept, recomputed = whole_program(make_pipe, 'none'), whole_program(make_pipe, recompute)
    assert count('dot', recomputed) > count('dot', kept)
    assert count('opt-barrier', recomputed) and not count('opt-barrier', kept)


def whole_program(make_pipe, recompute):
    """Returns what XLA is given for a step of one partition; its CPU compiler, unlike that of TPUs, ignores
    barriers."""
    x, y = batch()
    pipe = make_pipe(dense_layers(), num_micro_batches=2, recompute=recompute, jit_compile=True, devices=['CPU:0'])
    pipe.build(x.shape)
    step = tf.function(
        lambda x, y: pipe.value_and_grad(squared_error, x, y, step=0).gradients, jit_compile=True, autograph=False)
    return step.experimental_get_compiler_ir(tf.constant(x), tf.constant(y))(stage='hlo')


def count(operation, program):
    return len(re.findall(rf' {operation}\(', program))
