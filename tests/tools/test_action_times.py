"""What is recorded is the schedule as it ran, and recording leaves results and overlap as they are."""

import itertools
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from lingpipe import schedules
from lingpipe.layers.keras_params import KerasParams
from lingpipe.schedules import timeline
from lingpipe.tools import action_times
from tests.pipeline.small_stacks import squared_error
from tests.plain_stack import make_pipe

X = np.linspace(-1, 1, 24 * 4, dtype=np.float32).reshape(24, 4)


class Slow(keras.layers.Layer):
    """Passes its inputs on after a while, in both directions."""

    def call(self, inputs):
        @tf.custom_gradient
        def slow(x):
            return _wait(x), _wait

        return slow(inputs)


def _wait(x):
    def wait(value):
        time.sleep(0.03)
        return value

    return tf.ensure_shape(tf.numpy_function(wait, [x], x.dtype), x.shape)


def record(pipe, observe=True):
    """Run two steps; return the gradients, the `StepTimes` of the second, and the graph's functions."""

    @tf.function(autograph=False)
    def step():
        pipe.grid.observer = action_times.ActionTimes() if observe else None
        gradients = pipe.value_and_grad(squared_error, X, X, step=0).gradients
        return gradients, pipe.grid.observer.stamps() if observe else tf.zeros([0, 2])

    step()
    gradients, stamps = step()
    spans = pipe.grid.observer.spans(pipe.schedule, stamps.numpy()) if observe else ()
    times = timeline.StepTimes(pipe.schedule, spans, num_replicas=len(pipe.replicas))
    return gradients, times, step.get_concrete_function().graph.as_graph_def()


@pytest.fixture(scope='module', params=[
    ('gpipe', 1, 'layer'), ('interleaved_1f1b', 2, 'stage'), ('zb_h1', 1, 'none')],
    ids=lambda case: '-'.join(map(str, case)))
def recorded(request):
    """A pipeline, its gradients, and the `StepTimes` of a step."""
    schedule, num_virtual_stages, recompute = request.param
    made = make_pipe(
        [KerasParams(keras.layers.Dense, units=4, activation='tanh')] * 4, num_partitions=2, num_micro_batches=4,
        num_virtual_stages=num_virtual_stages, schedule=schedule, recompute=recompute)
    made.build((None, 4))
    return made, *record(made)[:2]


def test_the_spans_are_the_schedule_as_it_ran(recorded, assert_gradients_close):
    pipe, gradients, step = recorded
    expected = {action for actions in pipe.schedule.device_actions for action in actions}
    found = [span.action for span in step.spans]
    assert sorted(action for action in found if action.kind != timeline.RECOMPUTE) == sorted(expected)
    assert len(found) == len(set(found))
    assert all(span.start <= span.end for span in step.spans)
    _assert_one_at_a_time_in_order(step)
    _assert_dependencies(step)
    assert_gradients_close(gradients, record(pipe, observe=False)[0], 1e-6)


def _assert_one_at_a_time_in_order(step):
    for device, actions in enumerate(step.schedule.device_actions):
        own = [span for span in step.spans if span.device == device]
        assert all(before.end <= after.start for before, after in itertools.pairwise(own))
        assert [span.action for span in own if span.action.kind != timeline.RECOMPUTE] == list(actions)


def _assert_dependencies(step):
    spans = {span.action: span for span in step.spans}
    for action, span in spans.items():
        if action.kind == timeline.RECOMPUTE:
            assert spans[action._replace(kind=schedules.BACKWARD)].start >= span.end
        elif span.end > span.start:  # a B that has nothing to compute has no call that could wait
            assert all(spans[needed].end <= span.start for needed in step.schedule.dependencies(action))


def test_recomputations_are_spans_where_activations_are_not_at_hand(recorded):
    pipe, _, step = recorded
    schedule, recompute = pipe.schedule, pipe.params.recompute
    found = {span.action for span in step.spans if span.action.kind == timeline.RECOMPUTE}
    expected = schedule.backwards() - schedule.backwards_after_own_forward() if recompute != 'none' else []
    assert found == {action._replace(kind=timeline.RECOMPUTE) for action in expected}


def test_devices_work_at_the_same_time_while_they_are_recorded():
    num_micro_batches = 6
    stack = [KerasParams(keras.layers.Dense, units=4), KerasParams(Slow)] * 2
    pipe = make_pipe(stack, num_partitions=2, partition_by=[2, 4], num_micro_batches=num_micro_batches)
    pipe.build((None, 4))
    spans = {span.action: span for span in record(pipe)[1].spans}
    for kind, ahead, order in ((schedules.FORWARD, 0, 1), (schedules.BACKWARD, 1, -1)):
        pairs = list(itertools.pairwise(range(num_micro_batches)[::order]))
        in_flight = [_overlap(spans[kind, ahead, later], spans[kind, 1 - ahead, earlier]) for earlier, later in pairs]
        assert sum(in_flight) > len(pairs) / 2


def _overlap(one, other):
    return one.start < other.end and other.start < one.end


def test_without_an_observer_nothing_in_the_graph_reads_the_clock():
    pipe = make_pipe([KerasParams(keras.layers.Dense, units=4)] * 2, num_partitions=2, num_micro_batches=2)
    pipe.build((None, 4))
    assert 'Timestamp' in _operations(record(pipe)[2])
    assert 'Timestamp' not in _operations(record(pipe, observe=False)[2])


def _operations(graph_def):
    return {node.op for function in graph_def.library.function for node in function.node_def}


WORKER = '/job:worker/replica:0/task:1/device:'


def test_the_fastest_answer_gives_the_offset(monkeypatch):
    asked = []

    def ask(host):
        """Half a minute ahead; only one answer is fast."""
        asked.append(host)
        seconds = 0.0 if len(asked) == 7 else 0.2
        time.sleep(seconds)
        return time.time() + 30

    monkeypatch.setattr(action_times, '_time_of', ask)
    clocks = action_times.Clocks()
    offset = clocks.offset(f'{WORKER}GPU:3')
    assert offset == pytest.approx(30, abs=0.05)  # half of what a slow answer is off, on a busy machine too
    assert set(asked) == {f'{WORKER}CPU:0'}
    clocks.offset(f'{WORKER}GPU:2')
    assert len(asked) == 20


@pytest.mark.parametrize(
    'device', ['CPU:1', '/job:localhost/replica:0/task:0/device:GPU:0', '/job:chief/replica:0/task:0/device:CPU:0'])
def test_devices_of_this_machine_are_not_asked(device):
    assert action_times.Clocks().offset(device) == 0
