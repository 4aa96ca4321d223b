import dataclasses

import pytest

from lingpipe import schedules
from lingpipe.schedules import simulation
from lingpipe.schedules.timeline import RECOMPUTE, Span, StepTimes
from lingpipe.tools import traced


def step_of(name='gpipe', num_devices=2, num_micro_batches=4, seconds_of=lambda action: 1.0, update=(0.0, 0.0)):
    schedule = schedules.make_schedule(name, num_devices, num_micro_batches)
    actions = list(schedule.execution_order())
    return simulation.replay(schedule, [{action: seconds_of(action) for action in actions}], update)


def percentages(step):
    return dataclasses.asdict(traced.breakdown(step))


def test_equal_stages_of_gpipe_leave_the_papers_bubble_and_nothing_else():
    # (K - 1) / (M + K - 1), arXiv 1811.06965, section 2.3
    assert percentages(step_of()) == pytest.approx(
        {'compute': 80, 'recompute': 0, 'bubble': 20, 'imbalance': 0, 'transfer': 0, 'update': 0}, abs=1e-9)


def test_unequal_stages_add_imbalance_to_the_bubble():
    # device 0  FF........B..B     14 units, of which the devices work (4 + 12) / 2 = 8. Equal stages, of 2 an action,
    # would
    # device 1  .FFFFFFBBBBBB.     take (M + K - 1) * (2 + 2) = 12 and wait for 4: the bubble. The other 2 are
    # imbalance.
    parts = percentages(step_of(num_micro_batches=2, seconds_of=lambda action: 3.0 if action.stage else 1.0))
    assert parts == pytest.approx(
        {'compute': 800 / 14, 'recompute': 0, 'bubble': 400 / 14, 'imbalance': 200 / 14, 'transfer': 0, 'update': 0},
        abs=1e-9)


def test_waiting_that_no_action_explains_is_transfer():
    step = step_of(num_micro_batches=1)
    late = StepTimes(step.schedule, tuple(
        span if span.device == 0 and span.action.kind == 'F' else span._replace(start=span.start + 1, end=span.end + 1)
        for span in step.spans))
    assert percentages(late) == pytest.approx(
        {'compute': 40, 'recompute': 0, 'bubble': 40, 'imbalance': 0, 'transfer': 20, 'update': 0}, abs=1e-9)


def test_a_split_backward_pass_is_no_measure_for_a_whole_one():
    schedule = schedules.from_lists([['F0', 'F1', 'I0', 'B1', 'W0']])
    seconds = dict(zip(schedule.device_actions[0], [1.0, 1.0, 2.0, 5.0, 3.0]))
    step = simulation.replay(schedule, [seconds])
    assert traced.balanced_durations(schedule, step.durations) == pytest.approx(seconds)
    assert traced.mean_durations([step, step]) == [pytest.approx(seconds)]


def test_recomputation_is_apart_from_computation():
    schedule = schedules.make_schedule('gpipe', 1, 2)
    kinds = ['F', 'F', RECOMPUTE, 'B', RECOMPUTE, 'B']
    spans = tuple(
        Span(0, schedules.Action(kind, 0, moment % 2), moment, moment + 1) for moment, kind in enumerate(kinds))
    parts = percentages(StepTimes(schedule, spans))
    assert (parts['compute'], parts['recompute']) == pytest.approx((400 / 6, 200 / 6))


@pytest.mark.parametrize('name', sorted(
    name for name in schedules.SCHEDULES if schedules.NUM_VIRTUAL_STAGES[name] == 1))
def test_percentages_add_up_to_100_and_none_is_negative(name):
    def seconds_of(action):
        return 0.5 + (7 * action.stage + 3 * action.micro_batch + ord(action.kind)) % 5

    steps = [step_of(name, 3, 5, seconds_of, (0.2, 3.0)), step_of(name, 3, 5)]
    mean = dataclasses.astuple(traced.mean_breakdown(steps))
    assert sum(mean) == pytest.approx(100)
    assert min(mean) >= 0


def test_a_replica_that_waits_for_a_slower_one_is_imbalance():
    # replica 0  FB......     8 units, of which the devices work (2 + 8) / 2 = 5. With equal replicas none would wait.
    # replica 1  FFFBBBBB
    schedule = schedules.make_schedule('gpipe', 1, 1)
    step = simulation.replay(schedule, [{
        schedules.Action('F', 0, 0): seconds, schedules.Action('B', 0, 0): seconds + more}
                                    for seconds, more in ((1.0, 0.0), (3.0, 2.0))])
    assert percentages(step) == pytest.approx(
        {'compute': 1000 / 16, 'recompute': 0, 'bubble': 0, 'imbalance': 600 / 16, 'transfer': 0, 'update': 0},
        abs=1e-9)


def advice(schedule=None, num_cores=None, recompute=0.0, update=(0.0, 0.0), num_replicas=1,
           seconds_of=lambda action: 1.0):
    schedule = schedule or schedules.make_schedule('gpipe', 2, 16)
    durations = {action: seconds_of(action) for action in schedule.execution_order()}
    if recompute:
        durations.update({action._replace(kind=RECOMPUTE): recompute for action in schedule.backwards()})
    return traced.advice(
        [simulation.replay(schedule, [durations] * num_replicas, update)], num_cores)


def test_a_balanced_step_with_a_small_bubble_needs_none():
    assert advice() == ['Nothing stands out: no part of the waiting is large.']


def test_the_partition_that_costs_most_is_named():
    texts = advice(
        schedules.make_schedule('gpipe', 3, 32), seconds_of=lambda action: 1.75 if action.stage == 2 else 1.0)
    assert texts[0].startswith("Partition 2 is 1.4x the mean: give some of its layers to others, with "
                               "partition_by='time' or ")


@pytest.mark.parametrize('changes, start', [
    ({'recompute': 1.0}, "Recomputation takes 33 % of the step: where memory allows, recompute='none' saves it."),
    ({'schedule': schedules.make_schedule('gpipe', 2, 4)}, 'M=4 leaves 20 % bubble: use more micro-batches, fewer '),
    ({'update': (0.0, 34.0 / 3)}, 'The update takes 25 % of the step: a larger batch needs fewer of them.'),
])
def test_what_is_large_is_named(changes, start):
    text, = advice(**{'schedule': schedules.make_schedule('gpipe', 1, 17), **changes})
    assert text.startswith(start)


def test_devices_that_share_cores_are_pointed_out():
    assert advice(num_cores=2) == advice(num_cores=None)
    text, *_ = advice(num_cores=1)
    assert text.startswith('2 virtual devices share 1 processor core, with 1.9 actions in flight on average: ')
    text, *_ = advice(num_cores=2, num_replicas=2)
    assert text.startswith('4 virtual devices share 2 processor cores, with 3.8 actions in flight on average: ')


def steps_that_waited(*waits, num_micro_batches=16):
    """Steps of 34 s on two devices, of which each was waited for so many seconds before."""
    schedule = schedules.make_schedule('gpipe', 2, num_micro_batches)
    step = simulation.replay(schedule, [dict.fromkeys(schedule.execution_order(), 1.0)])
    return [dataclasses.replace(step, input_wait=(-wait - 1.0, -1.0)) for wait in waits]


def test_the_share_is_the_mean_of_the_steps():
    first, second = steps_that_waited(34.0, 0.0)
    assert (first.seconds, first.input_seconds, first.asked) == (34.0, 34.0, -35.0)
    assert traced.input_percent([first, second]) == pytest.approx(25)


def test_only_a_large_wait_for_input_brings_advice():
    told = traced.input_advice(steps_that_waited(34.0))
    assert told.startswith('Devices wait for input in 50 % of the step: ')
    assert 'multi_worker' in told
    assert traced.input_advice(steps_that_waited(0.5)) is None
