import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
import tensorflow as tf

from lingpipe.training import interruption


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
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
        assert noted == [True]
        assert interrupted.reason == 'SIGTERM'


def test_an_ignored_signal_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruption.catch_signals() as interrupted:
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
    assert not interrupted


@pytest.mark.parametrize('signalled', [False, True])
def test_the_handlers_from_before_are_put_back(signalled):
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with pytest.raises(ZeroDivisionError), interruption.catch_signals():
        assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] != before
        if signalled:
            os.kill(os.getpid(), signal.SIGTERM)
        raise ZeroDivisionError
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


# Ends when the second signal has no effect.
_TWICE = """
import os, signal, sys, time
from lingpipe.training import interruption
number, interruption._SECONDS_OF_ONE_REQUEST = int(sys.argv[1]), float(sys.argv[2])
signal.signal(number, signal.SIG_DFL)
with interruption.catch_signals():
    for _ in range(2):
        os.kill(os.getpid(), number)
        time.sleep(.2)
"""


@pytest.mark.parametrize('number, seconds, code', [
    (signal.SIGTERM, 0, -signal.SIGTERM), (signal.SIGINT, 0, -signal.SIGINT), (signal.SIGINT, 60, 0),
    (signal.SIGHUP, 0, 0)])
def test_a_second_one_ends_the_process_unless_it_is_the_first_one_again(number, seconds, code):
    assert subprocess.run([sys.executable, '-c', _TWICE, str(int(number)), str(seconds)]).returncode == code


def test_a_process_ends_by_a_signal_from_any_thread():
    program = ('import signal, threading, time\nfrom lingpipe.training import interruption\n'
               'print("printed")\n'
               'threading.Thread(target=interruption.end_by, args=[signal.SIGINT]).start()\ntime.sleep(60)')
    ended = subprocess.run([sys.executable, '-c', program], stdout=subprocess.PIPE, text=True)
    assert (ended.returncode, ended.stdout) == (-signal.SIGINT, 'printed\n')
