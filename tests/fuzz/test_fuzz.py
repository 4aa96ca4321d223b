"""Random models train as pipelines as they do in plain Keras; benchmarks/equality/fuzz.py looks at many more."""

import random

import hypothesis
import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st

from lingpipe.keras_graph import model_checks
from tests import recorded_norm
from tests.fuzz import comparison, drawing, kinds, loss_sources, pipelined, program, trial

_SEEDS_OF_A_PART = 10_000
_FIXED_SET = hypothesis.settings(
    max_examples=6, derandomize=True, database=None, deadline=None, phases=[hypothesis.Phase.generate],
    suppress_health_check=list(hypothesis.HealthCheck))


@pytest.fixture(autouse=True)
def nothing_is_kept():
    yield
    comparison.forget()


@pytest.mark.parametrize('part', range(4))
def test_a_random_model_trains_as_in_keras(part):
    @_FIXED_SET
    @hypothesis.given(st.integers(part * _SEEDS_OF_A_PART, (part + 1) * _SEEDS_OF_A_PART - 1))
    def trains(seed):
        drawn = drawing.program_of(seed)
        outcome = trial.outcome_of(drawn)
        if outcome.kind in (comparison.DIFFERENT, comparison.CRASHED):
            pytest.fail(f'{outcome}\n{program.source_of(drawn)}')

    trains()


def test_all_kinds_of_layers_are_drawn():
    models = [drawing.model_of(random.Random(seed))[1] for seed in range(600)]
    assert {node.kind for model in models for node in model.nodes} == set(kinds.KINDS)
    sizes = [len(model.nodes) for model in models]
    assert 3 <= sum(sizes) / len(sizes) and max(sizes) >= 8
    assert {len(model.outputs) for model in models} == {1, 2, 3}


def simple_program(**run):
    """Two dense layers with a function between them, in two partitions."""
    value = program.Value((4,))
    dense = "layers.Dense(4, activation='tanh', name={name!r})"
    nodes = [program.Node('dense', dense, '{layer}({0})', (0,), (value,)),
             program.Node('function', None, 'ops.tanh({0})', (1,), (value,)),
             program.Node('dense', dense, '{layer}({0})', (2,), (value,))]
    return program.Program(
        (value,), tuple(nodes), (3,),
        batch=program.Batch(4, 'loss = keras.losses.MeanSquaredError()', '', 'float32', None),
        fields={'num_partitions': 2, 'num_micro_batches': 2, 'schedule': '1f1b', 'recompute': 'none'},
        run={'way': 'value_and_grad', 'predicts': False, **run})


def with_outputs_off(method):
    def off(self, *arguments):
        return tf.nest.map_structure(lambda leaf: 1.01 * leaf, method(self, *arguments))

    return off


@pytest.mark.parametrize('use, run', [
    ('predict_source', {'between': ['predict_source']}),
    ('second_pipeline', {'between': ['second_pipeline'], 'second': {'num_partitions': 1, 'num_micro_batches': 2}})])
def test_uses_beside_the_steps_are_compared(monkeypatch, use, run):
    monkeypatch.setattr(pipelined.PipelinedModel, use, with_outputs_off(getattr(pipelined.PipelinedModel, use)))
    assert trial.outcome_of(simple_program(**run)).kind == comparison.DIFFERENT


def test_rows_that_are_mixed_within_a_micro_batch_are_found(monkeypatch):
    drawn = simple_program(couples_rows=True, num_steps=1)
    similarity = drawn.nodes[1]._replace(call='ops.matmul(ops.matmul({0}, ops.transpose({0})), {0})')
    drawn = drawn._replace(nodes=(drawn.nodes[0], similarity, drawn.nodes[2]))
    assert trial.outcome_of(drawn).kind == comparison.REFUSED
    monkeypatch.setattr(model_checks, 'refuse_mixed_rows', lambda *arguments: None)
    assert 'outputs of the whole batch' in trial.outcome_of(drawn).reason


@pytest.mark.parametrize('kind', loss_sources.WHOLE)
def test_a_loss_of_the_whole_batch_is_refused_or_equal(kind):
    drawn = simple_program(num_steps=1)
    batch = program.Batch(5, loss_sources.source_of(kind), '', 'float32', None)
    assert trial.outcome_of(drawn._replace(batch=batch)).kind in (comparison.EQUAL, comparison.REFUSED)


def test_an_outcome_names_its_kind_and_reason(monkeypatch):
    drawn = simple_program(num_steps=1)
    assert trial.outcome_of(drawn).kind == comparison.EQUAL
    refused = trial.outcome_of(drawn._replace(fields={**drawn.fields, 'num_partitions': 9}))
    assert refused.kind == comparison.REFUSED and 'num_partitions=9' in refused.reason
    plain = pipelined.PipelinedModel.value_and_grad

    def with_wrong_gradient(self, data):
        step = plain(self, data)
        return step._replace(gradients=[*step.gradients[:-1], 1.01 * step.gradients[-1]])

    monkeypatch.setattr(pipelined.PipelinedModel, 'value_and_grad', with_wrong_gradient)
    different = trial.outcome_of(drawn)
    assert different.kind == comparison.DIFFERENT and 'layer_2/bias' in different.reason
    monkeypatch.setattr(pipelined.PipelinedModel, 'value_and_grad', lambda self, data: [][0])
    assert trial.outcome_of(drawn).kind == comparison.CRASHED


def test_differences_within_the_rounding_of_plain_keras_are_equal(monkeypatch):
    drawn = simple_program(num_steps=1)
    no_gradient = ('def loss(y_true, outputs):\n'
                   '    return 100.0 * tf.reduce_sum(tf.nn.softmax(tf.cast(outputs, y_true.dtype)), -1)')
    drawn = drawn._replace(batch=drawn.batch._replace(loss=no_gradient, num_rows=8))
    assert trial.outcome_of(drawn).kind == comparison.EQUAL
    plain = pipelined.PipelinedModel.value_and_grad

    def with_gradient(self, data):
        step = plain(self, data)
        return step._replace(gradients=[gradient + 1e-4 for gradient in step.gradients])

    monkeypatch.setattr(pipelined.PipelinedModel, 'value_and_grad', with_gradient)
    assert trial.outcome_of(drawn).kind == comparison.DIFFERENT


@pytest.mark.parametrize('mask', [[[True, True]], [[True, False]], None])
def test_averages_of_masked_norms_move_as_in_keras(mask):
    norm = keras.layers.BatchNormalization(dtype='float64')
    inputs = tf.constant([[[1.0, -3.0], [5.0, 0.5]]], tf.float64)
    norm.build(inputs.shape)
    recorded = recorded_norm.RecordedNorm(norm)
    before = recorded.values()
    norm(inputs, training=True, mask=None if mask is None else tf.constant(mask))
    expected = recorded.values()
    recorded.move(before)
    np.testing.assert_allclose(recorded.values(), expected, rtol=1e-12)
