"""The mode end to end, on a model that trains in a second, and `lingpipe.trace`."""

import io
import json
import re

import keras
import numpy as np
import pytest
from PIL import Image

import lingpipe
from lingpipe.schedules.timeline import RECOMPUTE
from lingpipe.tools import trace


def test_a_trace_records_every_step_and_writes_its_files(tiny, tmp_path, capsys):
    steps = trace.Trace(tiny.params(), tmp_path / 'logs').run(2)
    assert len(steps) == 2
    for step in steps:
        assert len([span for span in step.spans if span.action.kind != RECOMPUTE]) == 2 * 2 * 2
        assert len(step.updates) == 2
        assert all(step.actions_end <= begin <= end for begin, end in step.updates)
    assert steps[0].end <= steps[1].asked
    assert all(step.asked == step.input_wait[0] <= step.input_wait[1] <= step.start for step in steps)
    printed = capsys.readouterr().out
    assert re.search(r'2 steps of [\d.]+ ms on average: ', printed)
    lines = [line.split() for line in printed.splitlines()]
    percentages = {line[0]: float(line[1]) for line in lines if len(line) == 2 and line[1][0].isdigit()}
    assert list(percentages) == ['input', 'compute', 'recompute', 'bubble', 'imbalance', 'transfer', 'update']
    assert sum(percentages.values()) == pytest.approx(100, abs=0.4)
    events = json.loads((tmp_path / 'logs/trace/trace.json').read_text())['traceEvents']
    assert {event['args']['step'] for event in events if event['ph'] == 'X'} == {1, 2}
    assert {event['args']['name'] for event in events if event['name'] == 'thread_name'} == {
        'CPU:0, partition 0', 'CPU:1, partition 1', 'input'}
    Image.open(io.BytesIO((tmp_path / 'logs/trace/timeline.png').read_bytes())).verify()
    assert [path.name for path in (tmp_path / 'logs').iterdir()] == ['trace']


def test_each_replica_has_rows_and_updates_of_its_own(tiny, tmp_path, capsys):
    params = tiny.params()
    params.task.dtype_policy = 'mixed_float16'  # with a scaled loss
    params.task.body.Set(num_replicas=2)
    step, = trace.Trace(params, tmp_path / 'logs').run(1)
    assert {span.device for span in step.spans} == set(range(4))
    assert len(step.updates) == 4
    assert all(step.actions_end <= begin <= end for begin, end in step.updates)
    assert '2 replicas of 2 partitions on 4 devices, 2 micro-batches each' in capsys.readouterr().out
    events = json.loads((tmp_path / 'logs/trace/trace.json').read_text())['traceEvents']
    assert [event['args']['name'] for event in events if event['name'] == 'thread_name'] == [
        f'CPU:{2 * replica + partition}, replica {replica}, partition {partition}' for replica in range(2)
        for partition in range(2)] + [
            'input']


def test_a_slow_input_is_recorded_in_every_step_and_reported(tiny, tmp_path, capsys):
    slow, = trace.Trace(tiny.params('StarvedDigits'), tmp_path / 'slow').run(1)
    printed = capsys.readouterr().out
    seconds = 0.3  # of each batch, none of which is made ahead
    assert slow.input_seconds >= seconds
    percent = next(float(line.split()[1]) for line in printed.splitlines() if line.startswith('input '))
    assert percent == pytest.approx(100 * slow.input_seconds / (slow.input_seconds + slow.seconds), abs=0.1)
    assert 'Devices wait for input in ' in printed
    events = json.loads((tmp_path / 'slow/trace/trace.json').read_text())['traceEvents']
    wait, = (event for event in events if event['name'] == 'wait for input')
    assert (wait['tid'], wait['ts'], wait['args']) == (2, 0.0, {'step': 1}) and wait['dur'] >= 1e6 * seconds
    fast = trace.Trace(tiny.params(), tmp_path / 'fast').run(5)
    assert min(step.input_seconds for step in fast) < seconds


def test_a_traced_step_trains_as_any_other(tiny, tmp_path, finished):
    traced = trace.Trace(tiny.params(), tmp_path / 'logs')
    traced.run(finished.trainer._step - 2)
    for variable, expected in zip(traced._task.body.weights, finished.trainer._task.body.weights):
        assert variable.numpy() == pytest.approx(expected.numpy(), rel=1e-5, abs=1e-6)


@pytest.fixture
def model():
    inputs = keras.Input([4])
    hidden = keras.layers.Dropout(0.5)(keras.layers.Dense(8, activation='relu')(inputs))
    source = keras.Model(inputs, keras.layers.BatchNormalization()(keras.layers.Dense(2)(hidden)))
    pipe = lingpipe.GPipeLayer.from_keras(source, num_partitions=2, num_micro_batches=3, recompute='none')
    model = lingpipe.PipelineModel(pipe)
    model.compile('adam', 'mse')
    return model


X, Y = np.ones([6, 4], 'float32'), np.ones([6, 2], 'float32')


def test_every_action_of_a_step_is_measured_and_nothing_changes(model, tmp_path):
    model.fit(X, Y, verbose=0)
    before = [variable.numpy() for variable in model.variables]
    traced = lingpipe.trace(model, X, Y, num_steps=2)
    assert [len(step.spans) for step in traced.steps] == [2 * 2 * 3] * 2  # forward and backward, partitions, M
    assert all(span.end >= span.start for span in traced.steps[0].spans)
    for variable, value in zip(model.variables, before):
        np.testing.assert_array_equal(variable.numpy(), value)
    assert re.match(r'2 steps of [\d.]+ ms on average: ', str(traced)) and 'bubble' in str(traced) and 'update' not in str(traced)
    traced.write(str(tmp_path / 'trace'))
    assert json.loads((tmp_path / 'trace/trace.json').read_text())['traceEvents']
    assert (tmp_path / 'trace/timeline.png').read_bytes().startswith(b'\x89PNG')


def test_what_cannot_be_traced_is_refused(model):
    with pytest.raises(TypeError, match='is not a PipelineModel'):
        lingpipe.trace(model.pipe, X, Y)
    with pytest.raises(ValueError, match='num_steps=0'):
        lingpipe.trace(model, X, Y, num_steps=0)
    with pytest.raises(ValueError, match='is not compiled'):
        lingpipe.trace(lingpipe.PipelineModel(model.pipe), X, Y)
    model.compile('adam', lambda y_true, outputs: keras.ops.max(y_true - outputs))
    with pytest.raises(ValueError, match='outside the pipeline'):
        lingpipe.trace(model, X, Y)
    source = keras.Sequential([keras.Input([6, 4]), keras.layers.Masking(), keras.layers.Dense(2)])
    model = lingpipe.PipelineModel(lingpipe.GPipeLayer.from_keras(source, num_micro_batches=2))
    model.compile('adam', lambda y_true, outputs: keras.ops.mean(keras.ops.square(y_true - outputs)))
    with pytest.raises(ValueError, match='masked outputs: the loss is computed on the whole batch'):
        lingpipe.trace(model, np.ones([4, 6, 4], 'float32'), np.ones([4, 6, 2], 'float32'))
