import keras
import pytest
import tensorflow as tf

from lingpipe.layers.keras_params import KerasParams
from tests.pipeline.small_stacks import cross_entropy, images_and_labels
from tests.plain_stack import PlainStack, make_pipe

layers = keras.layers
OWN_ORDER = [['0F0', '0F1', '0B1', '0B0'], ['1F1', '1F0', '1B1', '1B0']]


def eight_layers():
    return [
        KerasParams(layers.Conv2D, filters=4, kernel_size=3, name='convolution_0'),
        KerasParams(layers.BatchNormalization, momentum=0.9, name='norm_0'),
        KerasParams(layers.Activation, activation='tanh', name='activation_0'),
        KerasParams(layers.Conv2D, filters=5, kernel_size=3, strides=2, padding='same', name='convolution_1'),
        KerasParams(layers.BatchNormalization, momentum=0.8, name='norm_1'),
        KerasParams(layers.Flatten, name='flatten'),
        KerasParams(layers.Dense, units=6, activation='gelu', name='hidden'),
        KerasParams(layers.Dense, units=5, name='logits')]


@pytest.mark.parametrize('schedule, recompute, fields', [
    ('1f1b', 'layer', {'num_partitions': 2, 'num_micro_batches': 8}),
    ('1f1b', 'none', {'num_partitions': 4, 'num_micro_batches': 1}),
    ('zb_h1', 'stage', {'num_partitions': 2, 'num_micro_batches': 4}),
    ('zb_h1', 'none', {'num_partitions': 4, 'num_micro_batches': 2}),
    ('interleaved_1f1b', 'layer', {'num_partitions': 2, 'num_micro_batches': 4, 'num_virtual_stages': 2}),
    ('interleaved_1f1b', 'stage', {'num_partitions': 1, 'num_micro_batches': 3, 'num_virtual_stages': 3}),
    ('circular', 'stage', {'num_partitions': 2, 'num_micro_batches': 3, 'num_virtual_stages': 2}),
    ('zb_v', 'none', {'num_partitions': 2, 'num_micro_batches': 3, 'num_virtual_stages': 2}),
    ('v_half', 'stage', {'num_partitions': 4, 'num_micro_batches': 4, 'num_virtual_stages': 2}),
    ('gpipe', 'selective', {'num_partitions': 2, 'num_micro_batches': 4}),
    ('1f1b', 'selective', {'num_partitions': 4, 'num_micro_batches': 4}),
    ('zb_h1', 'selective', {'num_partitions': 3, 'num_micro_batches': 4}),
    ('interleaved_1f1b', 'selective', {'num_partitions': 2, 'num_micro_batches': 4, 'num_virtual_stages': 2}),
    ('zb_v', 'selective', {'num_partitions': 2, 'num_micro_batches': 4, 'num_virtual_stages': 2}),
    (OWN_ORDER, 'layer', {'num_partitions': 2, 'num_micro_batches': 2})])
def test_training_equals_the_plain_layers(schedule, fields, recompute, assert_close, assert_gradients_close):
    x, y = images_and_labels()
    pipe = make_pipe(eight_layers(), schedule=schedule, recompute=recompute, partition_by='params', **fields)
    plain = PlainStack(pipe, x)
    out = pipe.value_and_grad(cross_entropy, x, y, return_outputs=True)
    loss, gradients, outputs = plain.value_and_grad(cross_entropy, x, y, fields['num_micro_batches'])
    assert_close((out.loss, out.outputs), (loss, outputs))
    assert_gradients_close(out.gradients, gradients)
    assert_close([w.numpy() for layer in pipe.stack for w in layer.weights], [w.numpy() for w in plain.weights])


@pytest.mark.parametrize('schedule, num_virtual_stages, num_rows', [
    ('zb_h1', 1, 7), ('interleaved_1f1b', 2, 2), ('zb_v', 2, 7)])
def test_batches_of_other_sizes_equal_the_plain_layers(schedule, num_virtual_stages, num_rows, assert_close,
                                                       assert_gradients_close):
    x, y = images_and_labels(num_rows)
    pipe = make_pipe(eight_layers(), schedule=schedule, num_virtual_stages=num_virtual_stages, num_partitions=2,
                     num_micro_batches=4)
    plain = PlainStack(pipe, x)
    out = pipe.value_and_grad(cross_entropy, x, y, return_outputs=True)
    loss, gradients, outputs = plain.value_and_grad(cross_entropy, x, y, 4)
    assert_close((out.loss, out.outputs), (loss, outputs))
    assert_gradients_close(out.gradients, gradients)
    assert_close(pipe(x), plain(x))


@pytest.mark.parametrize('schedule, num_virtual_stages', [('zb_h1', 1), ('interleaved_1f1b', 2)])
def test_a_called_pipeline_equals_the_plain_layers_under_a_tape(schedule, num_virtual_stages, assert_close, assert_gradients_close):
    x, y = images_and_labels()
    pipe = make_pipe(eight_layers(), schedule=schedule, num_virtual_stages=num_virtual_stages, num_partitions=2,
                     num_micro_batches=2)
    plain = PlainStack(pipe, x)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(cross_entropy(y, pipe(x, training=True)))
    expected_loss, expected, _ = plain.value_and_grad(cross_entropy, x, y, 2)
    gradients = tape.gradient(loss, [variable.value for variable in pipe.trainable_variables])
    assert_close(loss, expected_loss)
    assert_gradients_close(gradients, expected)


def test_virtual_stages_take_turns_on_their_devices():
    x, _ = images_and_labels()
    pipe = make_pipe(
        eight_layers(), schedule='interleaved_1f1b', num_virtual_stages=2, num_partitions=3, num_micro_batches=3)
    pipe.build(x.shape)
    assert [part.device[-5:] for part in pipe.partitions] == ['CPU:0', 'CPU:1', 'CPU:2'] * 2
    assert [name for part in pipe.partitions for name in part.layer_names] == [layer.name for layer in pipe.stack]


def matrix_multiplications(graph):
    """Counts the matrix multiplications that a step runs, by function name."""
    definitions = {function.signature.name: function for function in graph.as_graph_def().library.function}
    counts = {}
    for operation in graph.get_operations():
        if operation.type == 'PartitionedCall':
            name = operation.get_attr('f').name
            count = sum(node.op == 'MatMul' for node in definitions[name].node_def)
            kind = name.removeprefix('__inference_stage_').split('_', 1)[1].rpartition('_')[0]
            counts[kind] = counts.get(kind, 0) + count
    return {kind: count for kind, count in counts.items() if count}


def test_a_split_backward_pass_does_no_work_twice():
    x = tf.random.stateless_normal([8, 6], [0, 1])
    y = tf.random.stateless_normal([8, 6], [0, 2])
    counts = {}
    for schedule in ('1f1b', 'zb_h1'):
        pipe = make_pipe([KerasParams(layers.Dense, units=6, activation='tanh', name=f'dense_{i}') for i in range(6)],
                         num_partitions=2, num_micro_batches=4, schedule=schedule, recompute='none')
        pipe.build(x.shape)
        step = tf.function(lambda x, y, pipe=pipe: pipe.value_and_grad(keras.losses.MeanSquaredError(), x, y).gradients)
        counts[schedule] = matrix_multiplications(step.get_concrete_function(x, y).graph)
    assert sum(counts['zb_h1'].values()) == sum(counts['1f1b'].values())
    assert counts['zb_h1'] == {'forward': 6 * 4, 'backward_inputs': 3 * 4, 'backward_weights': (6 + 2) * 4}, (
        "nobody waits for input gradients of the first partition: both halves of its backward pass are one 'W'")


def test_layers_are_recomputed_one_at_a_time():
    x = tf.random.stateless_normal([8, 6], [0, 1])
    y = tf.random.stateless_normal([8, 6], [0, 2])
    pipe = make_pipe([KerasParams(layers.Dense, units=6, activation='gelu', name=f'dense_{i}') for i in range(6)],
                     num_partitions=2, num_micro_batches=4, recompute='layer')
    pipe.build(x.shape)
    step = tf.function(lambda x, y: pipe.value_and_grad(keras.losses.MeanSquaredError(), x, y).gradients)
    counts = matrix_multiplications(step.get_concrete_function(x, y).graph)
    between = (2 + 2) * 3  # what passes between a partition's three layers; kept for the last micro-batch
    inside, backward = 6 * 4, (6 + 5) * 4
    assert counts == {'forward': 6 * 4, 'recompute': between, 'backward_segment': inside + backward}
