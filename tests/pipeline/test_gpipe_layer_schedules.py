import keras
import pytest
import tensorflow as tf

from tests.pipeline.small_stacks import convolutional_layers, cross_entropy, dense, images_and_labels
from tests.plain_stack import assert_trains_as_plain_layers, make_pipe

OWN_ORDER = [['0F0', '0F1', '0B1', '0B0'], ['1F1', '1F0', '1B1', '1B0']]


def eight_layers():
    *body, logits = convolutional_layers()
    return [*body, dense(6, activation='gelu', name='hidden'), logits]


@pytest.mark.parametrize('schedule, recompute, fields', [
    ('1f1b', 'layer', {'num_partitions': 2, 'num_micro_batches': 8}),
    ('zb_h1', 'stage', {'num_partitions': 2, 'num_micro_batches': 4}),
    ('zb_h1', 'none', {'num_partitions': 4, 'num_micro_batches': 2}),
    ('interleaved_1f1b', 'layer', {'num_partitions': 2, 'num_micro_batches': 4, 'num_virtual_stages': 2}),
    ('circular', 'stage', {'num_partitions': 2, 'num_micro_batches': 3, 'num_virtual_stages': 2}),
    ('zb_v', 'none', {'num_partitions': 2, 'num_micro_batches': 3, 'num_virtual_stages': 2}),
    ('v_half', 'stage', {'num_partitions': 4, 'num_micro_batches': 4, 'num_virtual_stages': 2}),
    ('1f1b', 'selective', {'num_partitions': 4, 'num_micro_batches': 4}),
    ('zb_h1', 'selective', {'num_partitions': 3, 'num_micro_batches': 4}),
    ('zb_v', 'selective', {'num_partitions': 2, 'num_micro_batches': 4, 'num_virtual_stages': 2}),
    (OWN_ORDER, 'layer', {'num_partitions': 2, 'num_micro_batches': 2})])
def test_training_equals_the_plain_layers(schedule, fields, recompute):
    pipe = make_pipe(eight_layers(), schedule=schedule, recompute=recompute, partition_by='params', **fields)
    assert_trains_as_plain_layers(pipe, cross_entropy, *images_and_labels(), fields['num_micro_batches'], num_steps=1)


def test_virtual_stages_take_turns_on_their_devices():
    x, _ = images_and_labels()
    pipe = make_pipe(
        eight_layers(), schedule='interleaved_1f1b', num_virtual_stages=2, num_partitions=3, num_micro_batches=3)
    pipe.build(x.shape)
    assert [part.device[-5:] for part in pipe.partitions] == ['CPU:0', 'CPU:1', 'CPU:2'] * 2
    assert [name for part in pipe.partitions for name in part.layer_names] == [layer.name for layer in pipe.stack]


def matrix_multiplications(graph):
    """Count the matrix multiplications that a step runs, by function name."""
    definitions = {function.signature.name: function for function in graph.as_graph_def().library.function}
    counts = {}
    for operation in graph.get_operations():
        if operation.type == 'PartitionedCall':
            name = operation.get_attr('f').name
            count = sum(node.op == 'MatMul' for node in definitions[name].node_def)
            kind = name.removeprefix('__inference_stage_').split('_', 1)[1].rpartition('_')[0]
            counts[kind] = counts.get(kind, 0) + count
    return {kind: count for kind, count in counts.items() if count}


def counts_of(schedule, recompute, activation):
    """Count the matrix multiplications of a step of six layers in two partitions, of four micro-batches."""
    x, y = (tf.random.stateless_normal([8, 6], [0, seed]) for seed in (1, 2))
    pipe = make_pipe([dense(6, activation=activation, name=f'dense_{i}') for i in range(6)],
                     num_partitions=2, num_micro_batches=4, schedule=schedule, recompute=recompute)
    pipe.build(x.shape)
    step = tf.function(lambda x, y: pipe.value_and_grad(keras.losses.MeanSquaredError(), x, y).gradients)
    return matrix_multiplications(step.get_concrete_function(x, y).graph)


def test_a_split_backward_pass_does_no_work_twice():
    whole, split = (counts_of(schedule, 'none', 'tanh') for schedule in ('1f1b', 'zb_h1'))
    assert sum(split.values()) == sum(whole.values())
    assert split == {'forward': 6 * 4, 'backward_inputs': 3 * 4, 'backward_weights': (6 + 2) * 4}, (
        "nobody waits for input gradients of the first partition: both halves of its backward pass are one 'W'")


def test_layers_are_recomputed_one_at_a_time():
    between = (2 + 2) * 3  # what passes between a partition's three layers; kept for the last micro-batch
    inside, backward = 6 * 4, (6 + 5) * 4
    assert counts_of('gpipe', 'layer', 'gelu') == {
        'forward': 6 * 4, 'recompute': between, 'backward_segment': inside + backward}
