"""Memory of a supervisor, here of this process, in which a new `HandedOverState` stands for the next process."""

import os

import pytest
import tensorflow as tf

from lingpipe.cluster import child_process
from lingpipe.training import handed_over_state


@pytest.fixture(name='pieces')
def pieces_fixture(monkeypatch):
    memory = child_process.Memory()
    monkeypatch.setattr(child_process, 'memory', lambda: memory.pieces)
    yield memory.pieces
    memory.close()


def make_state(step=0, shape=(2,)):
    return {'model': {'kernel': tf.Variable(tf.fill(shape, float(step))),
                      'half': tf.Variable(tf.cast([step, 1], tf.bfloat16)), 'flag': tf.Variable(step > 0)},
            'global_step': tf.Variable(step, dtype=tf.int64)}


def values(state):
    return [variable.numpy().tolist() for variable in tf.nest.flatten(state)]


def copy(*steps):
    mirror = handed_over_state.HandedOverState(share=1e9)
    for step in steps:
        mirror.after_steps(make_state(step))


@pytest.mark.parametrize('steps', [(3,), (3, 5), (3, 5, 9)])
def test_the_next_process_has_the_newest_copies(steps, pieces):
    copy(*steps)
    state, mirror = make_state(), handed_over_state.HandedOverState()
    assert mirror.step == steps[-1] and mirror.restore(state)
    assert values(state) == values(make_state(steps[-1]))


def test_a_process_that_is_killed_leaves_the_copies_before(pieces, monkeypatch):
    copy(3, 5)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(handed_over_state.np, 'ascontiguousarray', lambda array: (_ for _ in ()).throw(KeyboardInterrupt))
        copy(9)
    state, mirror = make_state(), handed_over_state.HandedOverState()
    assert mirror.step == 5 and mirror.restore(state)
    assert values(state) == values(make_state(5))


def test_copies_of_another_state_are_not_used(pieces):
    copy(3)
    state = make_state(shape=(3,))
    before = values(state)
    assert not handed_over_state.HandedOverState().restore(state)
    assert values(state) == before


def test_where_memory_is_full_training_continues_without_copies(monkeypatch, caplog):
    full = os.open('/dev/full', os.O_RDWR)
    monkeypatch.setattr(child_process, 'memory', lambda: [full])
    copy(3, 5)
    os.close(full)
    assert caplog.text.count('(No space left on device): a restart will resume from the newest checkpoint.') == 1


def test_without_a_supervisor_nothing_is_copied():
    copy(3)
    assert handed_over_state.HandedOverState().step == -1


def test_without_memory_nothing_is_handed_over(monkeypatch):
    def forbid(name):
        raise PermissionError(f'{name}: not permitted')

    monkeypatch.setattr(os, 'memfd_create', forbid)
    memory = child_process.Memory()
    assert memory.pieces == []
    monkeypatch.setattr(child_process, 'memory', lambda: memory.pieces)
    copy(3)
    assert handed_over_state.HandedOverState().step == -1
