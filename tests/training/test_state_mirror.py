"""Machines are stood in for by devices of this process, which are lost by a patch."""

import types

import pytest
import tensorflow as tf

from lingpipe.training import background_writer, state_mirror


@pytest.fixture(name='state')
def state_fixture(monkeypatch):
    """Variables on two machines and on the chief, of which each is a CPU device here."""
    monkeypatch.setattr(background_writer, 'host_of', lambda device: device)
    monkeypatch.setattr(state_mirror, '_WORKERS', ('CPU:1', 'CPU:2'))
    return make_state(1, 2)


def make_state(first, second):
    with tf.device(f'CPU:{first}'):
        weight = tf.Variable([1., 2.])
    with tf.device(f'CPU:{second}'):
        slot = tf.Variable([3., 4.])
    with tf.device('CPU:0'):
        return {'model': {'weight': weight}, 'optimizer': {'slot': slot}, 'global_step': tf.Variable(7, dtype=tf.int64)}


def values(state):
    return [variable.numpy().tolist() for variable in tf.nest.flatten(state)]


@pytest.fixture(name='lose')
def lose_fixture(monkeypatch):
    """Returns a function after whose call nothing can be read from some devices."""
    def lose(*lost):
        wait = background_writer.wait_for_all

        def fail_where_lost(tensors):
            if any(tensor.device.endswith(lost) for tensor in tensors):
                raise tf.errors.InvalidArgumentError(None, None, 'unknown device')
            wait(tensors)

        monkeypatch.setattr(background_writer, 'wait_for_all', fail_where_lost)

    return lose


@pytest.mark.parametrize('lost', [(), ('CPU:1',), ('CPU:2',)])
def test_a_state_outlives_any_one_machine(state, lose, lost):
    mirror = state_mirror.StateMirror()
    assert mirror.step == -1
    mirror.after_steps(state)
    before = values(state)
    for variable in tf.nest.flatten(state):
        variable.assign_add(tf.ones_like(variable))
    lose(*lost)
    other = make_state(3, 3)
    assert mirror.step == 7 and mirror.restore(other)
    assert values(other) == before


def test_nothing_changes_where_two_neighbours_are_lost(state, lose):
    mirror = state_mirror.StateMirror()
    mirror.after_steps(state)
    lose('CPU:1', 'CPU:2')
    other = make_state(3, 3)
    other['global_step'].assign(5)
    before = values(other)
    assert not mirror.restore(other)
    assert values(other) == before


def test_copies_are_made_as_often_as_they_take_their_share(state, monkeypatch):
    times = iter([0., 0., 1., 50., 101., 101., 103., 104.])
    monkeypatch.setattr(state_mirror, 'time', types.SimpleNamespace(monotonic=lambda: next(times)))
    mirror, steps = state_mirror.StateMirror(share=.01), []
    for _ in range(4):
        mirror.after_steps(state)
        steps.append(mirror.step)
        state['global_step'].assign_add(1)
    assert steps == [7, 7, 9, 9]
