"""Whole training steps as a TPU would be given them: virtual CPU devices pretend to be TPUs."""

import keras
import pytest
import tensorflow as tf

from lingpipe.layers.keras_params import KerasParams
from lingpipe.pipeline import gpipe_layer
from lingpipe.training import train_program
from tests import needs, virtual_tpu
from tests.closeness import assert_close
from tests.tiny_tasks import TASKS

STAGES = ['CPU:1', 'CPU:2']
NEED_NO_KERNEL = {'Placeholder', 'ReadVariableOp', 'AssignVariableOp', 'Identity', 'NoOp'}


def make_program(kind, dropout_rate=0.0, **fields):
    keras.utils.set_random_seed(0)
    p, batch = TASKS[kind](dropout_rate)
    p.body.Set(**fields)
    task = p.Instantiate()
    task.body.build_from_specs(tf.TensorSpec(batch[0].shape, batch[0].dtype))
    return train_program.TrainProgram(task, p.train), batch


def training_graph(program, batch):
    def step(*batch):
        with tf.device('CPU:0'):  # as the loop around the steps does
            return program._step(batch)

    return tf.function(step, autograph=False).get_concrete_function(*batch).graph


def train(program, batch, num_steps=2):
    """Return every variable after some steps, and the rows of metrics."""
    result = program.run(iter(tf.data.Dataset.from_tensors(batch).repeat()), num_steps)
    variables = [*program.named_variables.values(), *program.optimizer.variables]
    values = [variable.numpy() for variable in variables] + [
        average.numpy() for average in program.average.averages.values()]
    return [value.numpy() for value in result.metrics.values()] + values


def is_compiled(operation, library):
    """Whether a call runs nothing but one function that XLA compiles."""
    if 'PartitionedCall' not in operation.type:
        return False
    if '_XlaMustCompile' in operation.node_def.attr:
        return operation.get_attr('_XlaMustCompile')
    inside = [node for node in library[operation.get_attr('f').name].node_def if node.op not in NEED_NO_KERNEL]
    return len(inside) == 1 and inside[0].attr['_XlaMustCompile'].b


def on_stage(operation, device):
    return operation.device.endswith(f'device:{device}')


@pytest.mark.parametrize('kind, fields', [
    pytest.param('amoebanet', {}, marks=pytest.mark.slow), ('transformer', {'schedule': 'zb_h1', 'recompute': 'none'}),
    ('transformer', {'schedule': '1f1b', 'recompute': 'layer'})])
def test_all_that_runs_on_a_tpu_is_compiled_for_static_shapes(kind, fields):
    with virtual_tpu.pretend_tpus(STAGES):
        graph = training_graph(*make_program(kind, **fields))
    library = {function.signature.name: function for function in graph.as_graph_def().library.function}
    for device in STAGES:
        operations = [operation for operation in graph.get_operations() if on_stage(operation, device)]
        calls = [operation for operation in operations if is_compiled(operation, library)]
        others = {operation.type for operation in operations if operation not in calls}
        assert len(calls) >= 2 * 2 + 3 and others <= NEED_NO_KERNEL
        assert all(tensor.shape.is_fully_defined() for call in calls for tensor in [*call.inputs, *call.outputs])
    placeless = {operation.type for operation in graph.get_operations() if not operation.device}
    assert placeless <= NEED_NO_KERNEL


@pytest.mark.slow
@needs.xla_on_cpus
@pytest.mark.parametrize('kind, dropout_rate, compiled', [  # XLA draws other random numbers
    ('transformer', 0.0, {}), ('convolution', 0.5, {'jit_compile': True})])
def test_steps_on_a_tpu_equal_those_elsewhere(kind, dropout_rate, compiled):
    expected = train(*make_program(kind, dropout_rate, **compiled))
    with virtual_tpu.pretend_tpus(STAGES):
        actual = train(*make_program(kind, dropout_rate))
    assert_close(actual, expected)


def dense_pipe(num_micro_batches=4, **fields):
    layers = [KerasParams(keras.layers.Dense, units=3) for _ in range(2)]
    return gpipe_layer.GPipeLayer.Params().Set(
        name='pipe', layers=layers, num_partitions=2, num_micro_batches=num_micro_batches,
        **{'devices': STAGES, **fields}).Instantiate()


@pytest.mark.parametrize('rows', [6, None])
def test_a_batch_that_micro_batches_do_not_divide_is_refused(rows):
    with virtual_tpu.pretend_tpus(STAGES):
        pipe = dense_pipe()
        pipe.build((None, 3))
        call = tf.function(lambda x: pipe(x, training=True), autograph=False)
        with pytest.raises(ValueError, match='programs on CPU:1 .* num_micro_batches=4.*drop_remainder=True'):
            call.get_concrete_function(tf.TensorSpec([rows, 3]))


def test_optimizers_with_variables_that_no_weight_owns_are_refused():
    p, batch = TASKS['transformer'](0.0)
    p.train.optimizer = KerasParams(keras.optimizers.Nadam)
    with virtual_tpu.pretend_tpus(STAGES):
        task = p.Instantiate()
        task.body.build_from_specs(tf.TensorSpec(batch[0].shape, batch[0].dtype))
        with pytest.raises(ValueError, match='Nadam keeps .* which a TPU cannot hold. Choose another'):
            training_graph(train_program.TrainProgram(task, p.train), batch)
