"""A digest does not depend on names, but on all that a graph computes."""

import types

import pytest
import tensorflow as tf

from lingpipe.partition import layer_analysis
from lingpipe.placements import multi_worker_program


def digest(function):
    return multi_worker_program.graph_digest(tf.function(function, autograph=False).get_concrete_function(tf.TensorSpec([2])).graph)


def make(factor=3., swapped=False, inner=1.):
    def compute(x):
        left, right = x * factor, x + 1.
        with tf.device('CPU:1'):
            chosen = tf.cond(x[0] > 0, lambda: x * inner, lambda: x)
        return (right - left if swapped else left - right) + chosen + tf.numpy_function(lambda: 1., [], tf.float32)

    return compute


def test_the_same_code_has_the_same_digest():
    assert digest(make()) == digest(make())


def test_branches_count_in_a_fixed_order():
    graph = tf.function(make(), autograph=False).get_concrete_function(tf.TensorSpec([2])).graph
    condition = next(operation for operation in graph.get_operations() if operation.type == 'StatelessIf')
    attributes = dict(condition.node_def.attr)
    orders = [dict(sorted(attributes.items(), reverse=reverse)) for reverse in (False, True)]  # as of two processes
    found = [layer_analysis.called_graphs(types.SimpleNamespace(node_def=types.SimpleNamespace(attr=order)), graph)
             for order in orders]
    assert len(found[0]) == 2 and found[0] == found[1]


@pytest.mark.parametrize('change', [{'factor': 4.}, {'swapped': True}, {'inner': 2.}])
def test_other_code_has_another_digest(change):
    assert digest(make(**change)) != digest(make())
