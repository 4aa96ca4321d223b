import keras
import numpy as np
import pytest

from lingpipe.layers import batch_normalization
from lingpipe.layers.keras_params import KerasParams
from tests.pipeline.small_stacks import convolutional_layers, cross_entropy, images_and_labels
from tests.plain_stack import PlainStack, make_pipe


def stack(group_size):
    return [KerasParams(batch_normalization.BatchNormalization, group_size=group_size, momentum=0.9, name=params.name)
            if params.cls is keras.layers.BatchNormalization else params for params in convolutional_layers()]


def rows_of_groups(num_rows, num_replicas, num_micro_batches, group_size):
    """Order rows so that plain micro-batches hold what a group of replicas sees at once."""
    rows = np.arange(num_rows).reshape(num_replicas // group_size, group_size, num_micro_batches, -1)
    return rows.transpose(0, 2, 1, 3).reshape(-1)


@pytest.mark.parametrize('num_replicas, num_partitions, group_size, num_micro_batches, schedule, recompute', [
    (4, 1, 2, 2, 'gpipe', 'layer'), (4, 2, 4, 1, '1f1b', 'stage'), (2, 3, 8, 2, 'zb_h1', 'none')])
def test_statistics_and_gradients_are_those_of_the_whole_group(num_replicas, num_partitions, group_size, num_micro_batches, schedule, recompute, assert_close, assert_gradients_close):
    x, y = images_and_labels(16)
    pipe = make_pipe(stack(group_size), num_replicas=num_replicas, num_partitions=num_partitions,
                     num_micro_batches=num_micro_batches, schedule=schedule, recompute=recompute, partition_by='params')
    plain = PlainStack(pipe, x)
    size = min(group_size, num_replicas)
    order = rows_of_groups(16, num_replicas, num_micro_batches, size)
    loss, gradients, _ = plain.value_and_grad(cross_entropy, x[order], y[order],
                                              num_micro_batches * num_replicas // size)
    found = pipe.value_and_grad(cross_entropy, x, y)
    assert_close(found.loss, loss)
    assert_gradients_close(found.gradients, gradients)
    assert_close([w.numpy() for layer in pipe.stack for w in layer.weights], [w.numpy() for w in plain.weights])


@pytest.mark.parametrize('num_examples, fields, message', [
    (12, {'num_replicas': 3}, 'group_size=2 does not divide num_replicas=3'),
    (3, {'num_replicas': 2, 'num_micro_batches': 2},  # one replica would wait forever for the other
     "some replicas 1 and others 2 micro-batches, but layers such as 'norm_0'")])
def test_groups_and_micro_batches_that_do_not_come_out_even_are_refused(num_examples, fields, message):
    pipe = make_pipe(stack(2), **fields)
    with pytest.raises(ValueError, match=message):
        pipe.value_and_grad(cross_entropy, *images_and_labels(num_examples))
