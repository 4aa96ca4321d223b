import itertools

import numpy as np
import pytest
import tensorflow as tf

from lingpipe.devices import collectives


def parts_and_sums(num_replicas):
    random = np.random.default_rng(0)
    parts = [[random.normal(size=shape).astype('float32') for shape in ([3, 5], [7], [], [2, 2, 2])]
             for _ in range(num_replicas)]
    return parts, [np.sum(tensors, axis=0) for tensors in zip(*parts)]


def sum_in_graph(method, parts, owners):
    devices = [f'/device:CPU:{replica}' for replica in range(len(parts))]
    function = tf.function(lambda: collectives.gradient_sums(
        method, [[tf.constant(tensor) for tensor in tensors] for tensors in parts], devices, owners), autograph=False)
    return function.get_concrete_function()


@pytest.mark.parametrize('method, num_replicas', [
    ('auto', 4), *itertools.product(('add', 'ring', 'two_dimensional'), (2, 3, 6))])  # grids of one row, and one of two
def test_sums_are_those_of_all_replicas(method, num_replicas, assert_close):
    parts, sums = parts_and_sums(num_replicas)
    owners = [f'/device:CPU:{place % num_replicas}' for place in range(4)]
    assert_close([total.numpy() for total in sum_in_graph(method, parts, owners)()], sums)


@pytest.mark.parametrize('method', ['add', 'ring', 'two_dimensional'])
def test_the_last_addition_is_on_the_owner(method):
    parts, _ = parts_and_sums(6)
    owners = ['/device:CPU:4', '/device:CPU:1', '/device:CPU:1', '/device:CPU:5']
    outputs = sum_in_graph(method, parts, owners).graph.outputs
    calls = [output.op.inputs[0].op for output in outputs]
    assert [call.device[-1] for call in calls] == ['4', '1', '1', '5']


def test_two_dimensional_chains_are_short():
    """On a grid of 3 x 3 no sum takes more than 2 + 2 steps; on a ring of 9 it takes 8."""
    parts, _ = parts_and_sums(9)
    devices = [f'/device:CPU:{replica % 8}' for replica in range(9)]
    for method, longest in (('ring', 8), ('two_dimensional', 4)):
        function = tf.function(lambda method=method: collectives.gradient_sums(
            method, [[tf.constant(tensor) for tensor in tensors] for tensors in parts], devices, ['/device:CPU:2'] * 4),
            autograph=False)
        assert longest_chain(function.get_concrete_function().graph) == longest


def longest_chain(graph):
    depth = {}
    for operation in graph.get_operations():
        is_addition = 'PartitionedCall' in operation.type and '_add_up' in operation.get_attr('f').name
        depth[operation.name] = is_addition + max([depth[tensor.op.name] for tensor in operation.inputs], default=0)
    return max(depth.values())


def test_on_gpus_of_one_host_nccl_sums_on_every_device():
    parts, _ = parts_and_sums(2)
    devices = ['/job:localhost/replica:0/task:0/device:GPU:0', '/job:localhost/replica:0/task:0/device:GPU:1']

    def function():
        tensors = [[tf.constant(tensor) for tensor in row] for row in parts]
        return collectives.gradient_sums('auto', tensors, devices, [devices[0], devices[1]] * 2)

    graph = tf.function(function, autograph=False).get_concrete_function().graph
    reductions = [operation.device[-1] for operation in graph.get_operations() if operation.type == 'NcclAllReduce']
    assert sorted(reductions) == ['0'] * 4 + ['1'] * 4


def test_sums_have_no_timeout_which_would_leave_sleeping_threads_behind():
    stage = next(collectives.stage_numbers)

    def share(index):
        with collectives.working_for(collectives.Replica(2, stage, index, tf.constant(0, tf.int64), False)):
            return collectives.sum_over_group(tf.ones([1]), 2)

    graph = tf.function(share, autograph=False).get_concrete_function(tf.TensorSpec([], tf.int64)).graph
    (operation,) = [each for each in graph.get_operations() if each.type == 'CollectiveReduceV2']
    assert operation.get_attr('timeout_seconds') == 0
