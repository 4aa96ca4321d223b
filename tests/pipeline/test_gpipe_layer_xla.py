import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from lingpipe import GPipeLayer
from lingpipe.layers.keras_params import KerasParams
from lingpipe.stages import stage_program
from tests import needs
from tests.pipeline.small_stacks import squared_error, vectors
from tests.plain_stack import assert_trains_as_plain_layers, loss_and_gradients, make_pipe

pytestmark = needs.xla_on_cpus


def dense_layers():
    return [KerasParams(keras.layers.Dense, units=8, activation='tanh', name=f'dense_{index}') for index in range(4)]


BATCH = vectors(32, 8, 8)


@pytest.mark.parametrize('schedule, recompute', [
    ('gpipe', 'layer'), ('1f1b', 'none'), ('zb_h1', 'stage'), ('gpipe', 'selective'), ('zb_h1', 'selective')])
def test_compiled_partitions_equal_the_plain_layers(schedule, recompute):
    layers = [KerasParams(keras.layers.BatchNormalization, name='norm'), *dense_layers()]
    pipe = make_pipe(
        layers, schedule=schedule, recompute=recompute, num_partitions=2, num_micro_batches=4, jit_compile=True)
    assert_trains_as_plain_layers(pipe, squared_error, *BATCH, 4, num_steps=1)


@pytest.mark.parametrize('recompute', [  # a loop's lists from program to program; sizes known to XLA alone
    'none', 'selective', pytest.param('layer', marks=pytest.mark.slow)])
def test_loops_train_where_xla_compiles_what_it_can(recompute):
    x, y = np.random.default_rng(0).normal(size=(2, 7, 3, 2)).astype('float32')
    layers = [KerasParams(keras.layers.LSTM, units=2, return_sequences=True, name=name) for name in 'ab']
    pipe = make_pipe(
        layers, num_partitions=2, num_micro_batches=2, schedule='1f1b', recompute=recompute, jit_compile=True)
    assert_trains_as_plain_layers(pipe, squared_error, x, y, 2, num_steps=1)


def test_selective_recomputation_takes_any_number_of_rows(assert_close):
    inputs = keras.Input([4, 3])
    hidden = keras.layers.LayerNormalization()(keras.layers.Dense(4, activation='tanh')(inputs))
    hidden = keras.layers.Dense(4, activation='tanh')(keras.layers.Flatten()(hidden))
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    x = np.random.default_rng(0).normal(size=(7, 4, 3)).astype('float32')
    loss = keras.losses.MeanSquaredError()
    expected = loss_and_gradients(model, loss, x, x[:, 0, :1])
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


def test_every_function_of_a_stage_is_marked_for_xla_where_asked():
    compiled, plain = (compiled_calls(jit_compile=asked) for asked in (True, False))
    assert all(compiled) and len(compiled) == 2 * 2 * 2
    assert not any(plain) and len(plain) == 2 * 2 * 2 + 2  # recomputations are calls of their own


def compiled_calls(jit_compile):
    """For each call of a stage's function, whether the function inside is for XLA to compile."""
    graph, calls = stage_calls(make_pipe(dense_layers(), num_partitions=2, num_micro_batches=2, jit_compile=jit_compile))
    library = {function.signature.name: function for function in graph.as_graph_def().library.function}
    return [any(node.attr['_XlaMustCompile'].b for node in library[function_name(call)].node_def) for call in calls]


def stage_calls(pipe):
    """Return the graph of a step, and its calls of functions of stages."""
    x, y = BATCH
    pipe.build(x.shape)
    graph = tf.function(lambda: pipe.value_and_grad(squared_error, x, y).gradients).get_concrete_function().graph
    return graph, [operation for operation in graph.get_operations()
                   if operation.type == 'PartitionedCall' and 'stage_' in function_name(operation)]


def function_name(call):
    return call.get_attr('f').name


def test_too_many_residuals_for_a_tpu_are_recomputed(monkeypatch):
    """That holds even where the backward action follows right after the forward action."""
    monkeypatch.setattr(stage_program, 'MOST_TPU_PARAMETERS', 10)
    pipe = make_pipe(dense_layers(), num_partitions=2, num_micro_batches=2, jit_compile=True)
    _, calls = stage_calls(pipe)
    assert len([call for call in calls if 'backward_from_inputs' in function_name(call)]) == 2 * 2
    assert_trains_as_plain_layers(pipe, squared_error, *BATCH, 2, num_steps=1)


@pytest.mark.parametrize('recompute', ['stage', 'layer'])
def test_recomputation_in_one_program_stands_behind_a_barrier(recompute):
    kept, recomputed = whole_program('none'), whole_program(recompute)
    assert count('dot', recomputed) > count('dot', kept)
    assert count('opt-barrier', recomputed) and not count('opt-barrier', kept)


def whole_program(recompute):
    """Return what XLA is given for a step of one partition; its CPU compiler, unlike that of TPUs, ignores
    barriers."""
    x, y = BATCH
    pipe = make_pipe(dense_layers(), num_micro_batches=2, recompute=recompute, jit_compile=True, devices=['CPU:0'])
    pipe.build(x.shape)
    step = tf.function(
        lambda x, y: pipe.value_and_grad(squared_error, x, y, step=0).gradients, jit_compile=True, autograph=False)
    return step.experimental_get_compiler_ir(tf.constant(x), tf.constant(y))(stage='hlo')


def count(operation, program):
    return len(re.findall(rf' {operation}\(', program))
