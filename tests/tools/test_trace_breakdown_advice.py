import pytest

from lingpipe import schedules
from lingpipe.schedules import simulation
from lingpipe.schedules.timeline import RECOMPUTE
from lingpipe.tools.trace import trace_breakdown


def advice(schedule=None, batch_size=64, num_cores=None, recompute=0.0, update=(0.0, 0.0), num_replicas=1,
           seconds_of=lambda action: 1.0):
    schedule = schedule or schedules.make_schedule('gpipe', 2, 16)
    durations = {action: seconds_of(action) for action in schedule.execution_order()}
    if recompute:
        durations.update({action._replace(kind=RECOMPUTE): recompute for action in schedule.backwards()})
    return trace_breakdown.advice(
        [simulation.replay(schedule, [durations] * num_replicas, update)], batch_size, num_cores)


def test_a_balanced_step_with_a_small_bubble_needs_none():
    assert advice() == ['Nothing stands out: no part of the waiting is large.']


def test_the_bubble_of_more_micro_batches_is_predicted():
    # K=2: (K - 1) / (M + K - 1) is 1/5 for M=4 and 1/17 for M=16.
    assert advice(schedules.make_schedule('gpipe', 2, 4)) == ['M=4 leaves 20 % bubble: M=16 leaves 6 %.']


def test_no_more_micro_batches_than_examples_are_proposed():
    assert advice(schedules.make_schedule('gpipe', 2, 4), batch_size=8) == ['M=4 leaves 20 % bubble: M=8 leaves 11 %.']
    assert advice(schedules.make_schedule('gpipe', 2, 4), batch_size=16, num_replicas=2) == [
        'M=4 leaves 20 % bubble: M=8 leaves 11 %.']
    text, = advice(schedules.make_schedule('gpipe', 2, 4), batch_size=4)
    assert text == 'M=4 leaves 20 % bubble: use fewer partitions, a larger batch, or a schedule that waits less, such as zb_h1.'


def test_the_bubble_of_a_users_own_order_is_not_predicted():
    own = schedules.make_schedule([['F0', 'B0', 'F1', 'B1'], ['F0', 'B0', 'F1', 'B1']], 2, 2)
    assert advice(own)[0].endswith('bubble: use fewer partitions, a larger batch, or a schedule that waits less, such '
                                   'as zb_h1.')


def test_the_partition_that_costs_most_is_named():
    texts = advice(
        schedules.make_schedule('gpipe', 3, 32), seconds_of=lambda action: 1.75 if action.stage == 2 else 1.0)
    assert texts[0].startswith("Partition 2 is 1.4x the mean: give some of its layers to others, with "
                               "partition_by='time' or ")


@pytest.mark.parametrize('changes, start', [
    ({'recompute': 1.0}, "Recomputation takes 33 % of the step: where memory allows, recompute='none' saves it."),
    ({'update': (0.0, 34.0 / 3)}, 'The update takes 25 % of the step: a larger batch needs fewer of them.'),
])
def test_what_is_large_is_named(changes, start):
    assert advice(schedules.make_schedule('gpipe', 1, 17), **changes)[0] == start


def test_devices_that_share_cores_are_pointed_out():
    assert advice(num_cores=2) == advice(num_cores=None)
    text, *_ = advice(num_cores=1)
    assert text.startswith('2 virtual devices share 1 processor core, with 1.9 actions in flight on average: ')
    text, *_ = advice(num_cores=2, num_replicas=2)
    assert text.startswith('4 virtual devices share 2 processor cores, with 3.8 actions in flight on average: ')
