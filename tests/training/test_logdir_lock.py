import fcntl
import os

import pytest

from lingpipe.training import errors, logdir


def test_a_second_holder_is_refused_and_the_first_is_named(tmp_path):
    file = str(tmp_path / 'lock')
    with logdir.hold_lock(file, 'logs'):
        with pytest.raises(errors.TrainingError) as caught, logdir.hold_lock(file, 'logs'):
            pytest.fail('Both hold the lock.')
    assert str(caught.value).startswith(f'--logdir=logs is in use by another training run (process {os.getpid()} on ')
    assert str(caught.value).endswith('Wait for its end, stop it, or choose another --logdir; nothing was changed.')
    with logdir.hold_lock(file, 'logs'):
        pass


def test_an_error_inside_the_scope_frees_the_lock(tmp_path):
    file = str(tmp_path / 'lock')
    with pytest.raises(OSError, match='disk'), logdir.hold_lock(file, 'logs'):
        raise OSError('disk')
    with logdir.hold_lock(file, 'logs'):
        pass


def test_what_cannot_be_locked_is_not(tmp_path, monkeypatch):
    with logdir.hold_lock('gs://bucket/lock', 'logs'):
        pass

    def refuse(stream, operation):
        raise OSError(37, 'No locks available')

    monkeypatch.setattr(fcntl, 'flock', refuse)
    with logdir.hold_lock(str(tmp_path / 'lock'), 'logs'):
        pass
