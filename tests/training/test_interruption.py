import os
import signal
import threading

import numpy as np
import pytest
import tensorflow as tf

from lingpipe.training import interruption


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_is_noted_and_nothing_else_happens(number):
    with interruption.catch_signals() as interrupted:
        assert not interrupted
        os.kill(os.getpid(), number)
        assert interrupted
        assert interrupted.reason == number.name


def test_the_callback_runs_while_the_main_thread_is_in_tensorflow():
    stopped, noted = threading.Event(), []

    def stop():
        noted.append(bool(interrupted))
        stopped.set()

    waiting = tf.function(lambda: tf.numpy_function(lambda: np.bool_(stopped.wait(20)), [], tf.bool), autograph=False)
    waiting.get_concrete_function()
    timer = threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGTERM])
    with interruption.catch_signals(stop) as interrupted:
        timer.start()
        assert waiting()  # true because of stop(): the handler in this thread must wait until TensorFlow returns
        timer.join()
        assert noted == [False]
        assert interrupted.reason == 'SIGTERM'


def test_other_signals_stop_nothing():
    before, called = signal.signal(signal.SIGUSR1, lambda number, frame: None), []
    try:
        with interruption.catch_signals(lambda: called.append(True)) as interrupted:
            os.kill(os.getpid(), signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not interrupted and not called


@pytest.fixture
def usual_handler():
    """Python's own, even where the tests run in the background, which ignores SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures('usual_handler')
def test_a_second_one_has_its_usual_effect():
    with interruption.catch_signals() as interrupted:
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        assert interrupted.reason == 'SIGINT'


@pytest.mark.parametrize('signalled', [False, True])
def test_the_handlers_from_before_are_put_back(signalled):
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with pytest.raises(ZeroDivisionError), interruption.catch_signals():
        assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] != before
        if signalled:
            os.kill(os.getpid(), signal.SIGTERM)
        raise ZeroDivisionError
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
