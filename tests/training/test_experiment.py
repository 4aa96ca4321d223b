"""What a training adds to the params of its pipeline."""

import json

import numpy as np
import pytest
import tensorflow as tf

from lingpipe.partition import layer_profile
from lingpipe.training import experiment

SPEC = tf.TensorSpec([32, 8, 8, 1])


@pytest.fixture(scope='module')
def by_time(tiny, tmp_path_factory):
    """Folder and task of a trainer whose pipeline is cut by measured time."""
    folder = tmp_path_factory.mktemp('by_time') / 'logs'
    return folder, tiny.trainer(folder, task__body__partition_by='time', task__body__memory_limit=1e9)._task


def test_a_cut_by_time_stores_its_times_and_measures_once(by_time, tiny, monkeypatch):
    folder, task = by_time
    assert all(part.seconds > 0 for part in task.body.partitions)
    entries = json.loads((folder / 'layer_times.json').read_text())
    assert len(entries) == 5
    monkeypatch.setattr(layer_profile, '_profile', None)  # nothing is measured again
    again = tiny.trainer(folder, task__body__partition_by='time', task__body__memory_limit=1e9)
    assert again._task.body.partitions == task.body.partitions


def test_measuring_leaves_the_initial_weights_as_they_are(by_time, tiny):
    plain = experiment.build_task(tiny.params(task__body__partition_by=[2, 5]), SPEC)
    for one, other in zip(plain.body.trainable_variables, by_time[1].body.trainable_variables, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())


def test_a_memory_limit_counts_slots_and_the_moving_average(tiny):
    params = tiny.params(task__body__memory_limit=1e9)
    assert experiment.body_params(params).num_optimizer_slots == 2  # momentum, and ema_decay
    assert params.task.body.num_optimizer_slots is None
    assert experiment.body_params(tiny.params()).num_optimizer_slots is None


def test_evaluation_measures_nothing_and_needs_no_room_for_training(tiny):
    params = tiny.params(task__body__partition_by='time', task__body__memory_limit=1)
    body = experiment.build_task(experiment.evaluation_params(params), tf.TensorSpec([150, 8, 8, 1])).body
    assert [(part.seconds, part.memory) for part in body.partitions] == [(None, None)] * 2
    assert params.task.body.partition_by == 'time'
    by_params = experiment.evaluation_params(tiny.params(task__body__partition_by='params'))
    assert by_params.task.body.partition_by == 'params'


@pytest.mark.parametrize('field, value', [
    ('batch_size', 'auto'), ('batch_size', None), ('batch_size', 0), ('image_size', -3)])
def test_a_size_of_an_input_that_is_not_built_is_checked(tiny, field, value):
    """As for the modes that only describe the model: `inspect_model`, `plan` and `export`."""
    with pytest.raises(ValueError, match=f'^input.{field}={value!r} is not possible: .* Set it to 1 at least'):
        experiment.input_spec(tiny.params(**{f'input__{field}': value}))
    assert experiment.input_spec(tiny.params()) == SPEC


def test_evaluations_without_data_are_refused(tiny):
    params = tiny.params(eval__interval_steps=4)
    experiment.require_evaluation_inputs(params.eval, tiny.evaluation_inputs())
    with pytest.raises(ValueError, match=r'^eval.interval_steps=4 .* neither Dev\(\) nor Test\(\). Write one of them'):
        experiment.require_evaluation_inputs(params.eval, {})
