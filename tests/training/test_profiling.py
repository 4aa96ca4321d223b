"""Profiles of training steps, by what TensorFlow's profiler has written."""

import logging

import pytest
import tensorflow as tf

from lingpipe.training import errors, profiling


def events_named(folder, name):
    """Returns how often an event of a name stands in the one profile below a folder."""
    path, = folder.glob('train/plugins/profile/*/*.xplane.pb')
    return path.read_bytes().count(name)


def test_the_steps_of_the_range_are_profiled_one_by_one(
        tiny, finished, tmp_path, capsys, assert_same_checkpoint, monkeypatch):
    calls = []
    trace = tf.profiler.experimental.Trace

    def recorded(name, **fields):
        calls.append(fields['step_num'])
        return trace(name, **fields)

    monkeypatch.setattr(tf.profiler.experimental, 'Trace', recorded)
    tiny.only_train(tmp_path, train__profile_steps='6:8')
    assert calls == [6, 7, 8]
    assert f'Profile of steps 6 to 8: {tmp_path}/train/plugins/profile' in capsys.readouterr().err
    assert events_named(tmp_path, b'train')
    assert_same_checkpoint(tmp_path / 'train/ckpt-12', finished.logdir / 'train/ckpt-12')


def test_a_run_that_fails_in_the_range_leaves_its_profile(tiny, tmp_path):
    with pytest.raises(errors.TrainingError, match='not finite'):
        tiny.train(tmp_path, 'PoisonedDigits', train__profile_steps='4:9')
    assert events_named(tmp_path, b'train')
    tf.profiler.experimental.start(str(tmp_path / 'other'))  # as the profiler is free again
    tf.profiler.experimental.stop()


def test_another_profile_under_way_is_reported(tiny, tmp_path):
    tf.profiler.experimental.start(str(tmp_path / 'other'))
    try:
        with pytest.raises(errors.TrainingError, match='Steps cannot be profiled .* leave --profile_steps out'):
            tiny.only_train(tmp_path / 'logs', train__profile_steps='2:3')
    finally:
        tf.profiler.experimental.stop()


def test_a_range_behind_a_resumed_run_is_told(tiny, copied, caplog):
    with caplog.at_level(logging.WARNING, 'absl'):
        tiny.only_train(copied, train__max_steps=13, train__profile_steps='3:4')
    assert '--profile_steps=3:4: this run resumes from step 12, so that nothing is profiled.' in caplog.text
    assert not list(copied.glob('train/plugins'))


@pytest.mark.parametrize('steps', ['5', '5:', ':5', '0:3', '7:5', '1-3', '1:2:3', '-1:3', '', 'all', 5])
def test_what_is_no_range_is_refused(tiny, steps):
    with pytest.raises(ValueError, match='train.profile_steps=.* must be FIRST:LAST with 1 <= FIRST <= LAST. Give'):
        profiling.validate(tiny.params(train__profile_steps=steps).train)


def test_a_range_beyond_the_last_step_is_refused(tiny, tmp_path):
    profiling.validate(tiny.params(train__profile_steps='12:12').train)
    with pytest.raises(ValueError, match="'12:13' is not possible: training ends with step 12 .train.max_steps.. Pro"):
        tiny.only_train(tmp_path / 'logs', train__profile_steps='12:13')
    assert not (tmp_path / 'logs').exists()


@pytest.mark.parametrize(('step', 'ahead'), [(0, [5]), (4, [1]), (5, [1]), (7, [1]), (8, []), (9, [])])
def test_calls_end_where_the_range_begins(step, ahead):
    assert profiling.StepProfile('6:8', '').num_steps_ahead(step) == ahead
    assert profiling.StepProfile(None, '').num_steps_ahead(step) == []


def test_the_steps_read_back_from_the_text_of_params(tiny):
    params = tiny.params(train__profile_steps='6:8')
    assert tiny.params().FromText(params.ToText()).train.profile_steps == '6:8'
