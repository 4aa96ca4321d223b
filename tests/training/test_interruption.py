import os
import signal

import pytest

from lingpipe.training import interruption


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_is_noted_and_nothing_else_happens(number):
    with interruption.catch_signals() as interrupted:
        assert not interrupted
        os.kill(os.getpid(), number)
        assert interrupted
        assert interrupted.signal_name == number.name


def test_a_second_one_has_its_usual_effect():
    with interruption.catch_signals() as interrupted:
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        assert interrupted.signal_name == 'SIGINT'


@pytest.mark.parametrize('signalled', [False, True])
def test_the_handlers_from_before_are_put_back(signalled):
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with pytest.raises(ZeroDivisionError), interruption.catch_signals():
        assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] != before
        if signalled:
            os.kill(os.getpid(), signal.SIGTERM)
        raise ZeroDivisionError
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
