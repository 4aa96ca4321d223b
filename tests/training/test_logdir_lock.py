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


def test_a_lock_that_is_a_link_leaves_what_it_leads_to_alone(tmp_path):
    (tmp_path / 'precious').write_text('precious')
    for target in ('precious', 'nowhere'):
        (tmp_path / 'lock').symlink_to(tmp_path / target)
        with pytest.raises(errors.TrainingError, match='its lock .* cannot be opened .*It must be a plain file'):
            with logdir.hold_lock(str(tmp_path / 'lock'), 'logs'):
                pytest.fail('It was opened.')
        (tmp_path / 'lock').unlink()
    assert (tmp_path / 'precious').read_text() == 'precious' and not (tmp_path / 'nowhere').exists()


def test_what_stands_in_a_lock_cannot_fill_the_terminal(tmp_path):
    with open(tmp_path / 'lock', 'w+', encoding='utf-8') as stream:
        stream.write('\033[2J' + 'a' * 10**6)
        stream.flush()
        fcntl.flock(stream, fcntl.LOCK_EX)
        with pytest.raises(errors.TrainingError) as caught, logdir.hold_lock(str(tmp_path / 'lock'), 'logs'):
            pytest.fail('Both hold the lock.')
    assert '\033' not in str(caught.value) and len(str(caught.value)) < 500
