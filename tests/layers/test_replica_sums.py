import pytest
import tensorflow as tf

from lingpipe.layers import replica_sums


def test_sums_have_no_timeout_which_would_leave_sleeping_threads_behind():
    stage = replica_sums.new_stage()

    def share(index):
        with replica_sums.working_for(replica_sums.Replica(2, stage, index, tf.constant(0, tf.int64), False)):
            return replica_sums.sum_over_group(tf.ones([1]), 2)

    graph = tf.function(share, autograph=False).get_concrete_function(tf.TensorSpec([], tf.int64)).graph
    (operation,) = [each for each in graph.get_operations() if each.type == 'CollectiveReduceV2']
    assert operation.get_attr('timeout_seconds') == 0


def test_more_groups_than_can_be_told_apart_are_refused():
    with replica_sums.working_for(replica_sums.Replica(2050, 1, tf.constant(0, tf.int64), tf.constant(0, tf.int64), False)):
        with pytest.raises(ValueError, match='makes 1025 groups, and 1024 are the most .* Set group_size to 3 or more'):
            replica_sums.sum_over_group(tf.ones([1]), 2)
