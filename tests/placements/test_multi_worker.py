"""What workers make of the states that their layers have after their shares of a batch."""

import pytest
import tensorflow as tf

from lingpipe.placements import multi_worker

BEFORE, AFTER = 10.0, [13.0, 15.0]


class TwoWorkers(multi_worker.Workers):
    """Two workers in one process: all give their parts of a sum before any of them gets it."""

    def __init__(self):
        self.count, self.given = 2, {}

    def sum(self, device, tensors):
        self.given[self.index] = tensors
        return tf.add_n(list(self.given.values()))

    def agreed(self, aggregation):
        rounds = []
        for _ in range(2):  # in the second one the parts of both are there
            for self.index, after in enumerate(AFTER):
                rounds.append(float(self.agree_on('CPU:0', aggregation, tf.constant(BEFORE), tf.constant(after))))
        return rounds[2:]


@pytest.mark.parametrize('aggregation, expected', [('mean', 14.0), ('sum', 18.0), ('none', 13.0)])
def test_workers_agree_on_a_state_by_its_aggregation(aggregation, expected):
    assert TwoWorkers().agreed(aggregation) == [expected, expected]
