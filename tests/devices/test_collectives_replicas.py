import pytest
import tensorflow as tf

from lingpipe.devices import collectives


def test_sums_have_no_timeout_which_would_leave_sleeping_threads_behind():
    stage = collectives.new_stage()

    def share(index):
        with collectives.working_for(collectives.Replica(2, stage, index, tf.constant(0, tf.int64), False)):
            return collectives.sum_over_group(tf.ones([1]), 2)

    graph = tf.function(share, autograph=False).get_concrete_function(tf.TensorSpec([], tf.int64)).graph
    (operation,) = [each for each in graph.get_operations() if each.type == 'CollectiveReduceV2']
    assert operation.get_attr('timeout_seconds') == 0


def test_too_many_groups_are_refused():
    with collectives.working_for(collectives.Replica(2050, 1, tf.constant(0, tf.int64), tf.constant(0, tf.int64), False)):
        with pytest.raises(ValueError, match='makes 1025 groups, and 1024 are the most .* Set group_size to 3 or more'):
            collectives.sum_over_group(tf.ones([1]), 2)
