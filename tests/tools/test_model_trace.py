import json
import re

import keras
import numpy as np
import pytest

import lingpipe


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
