import contextlib
import fcntl
import io
import os
import re
import select
import struct
import termios
import types

import pytest

from lingpipe.training import progress


@pytest.fixture
def clock(monkeypatch):
    """A clock whose attribute `now` is the time, in seconds."""
    fake = types.SimpleNamespace(now=1000.0)
    fake.monotonic = lambda: fake.now
    monkeypatch.setattr(progress, 'time', fake)
    return fake


def test_without_a_terminal_a_plain_line_shows_everything(clock):
    stream = io.StringIO()
    shown = progress.Progress(1000, 0, 32, 'images', interval_seconds=5.0, stream=stream)
    clock.now += 6
    shown.update(100, {'loss': 1.23456, 'accuracy': 0.98765}, 100, 4.0)
    assert stream.getvalue() == 'step 100/1000, loss 1.2346, accuracy 98.77 %, 800 images/s, 00:36 left\n'


def test_plain_lines_come_at_an_interval_and_at_the_end(clock):
    stream = io.StringIO()
    shown = progress.Progress(20, 0, 32, 'images', interval_seconds=5.0, stream=stream)
    for step in range(1, 21):
        clock.now += 1
        shown.update(step, {'loss': 1.0}, 1, 1.0)
    assert [line.split(',')[0] for line in stream.getvalue().splitlines()] == [
        'step 5/20', 'step 10/20', 'step 15/20', 'step 20/20']


def test_time_left_ignores_earlier_runs_and_building_the_first_step(clock):
    stream = io.StringIO()
    shown = progress.Progress(1000, 500, 32, 'images', interval_seconds=0.0, stream=stream)
    clock.now += 3600
    shown.update(600, {}, 100, 200.0)
    clock.now += 7000
    shown.update(700, {}, 100, 200.0)  # 7200 seconds for 200 steps, evaluations included
    assert [line.split(', ')[-1] for line in stream.getvalue().splitlines()] == ['13:20 left', '3:00:00 left']


@contextlib.contextmanager
def terminal(columns):
    """A stream that is a terminal, and a function that returns what was written to it."""
    reading, writing = os.openpty()
    fcntl.ioctl(writing, termios.TIOCSWINSZ, struct.pack('HHHH', 25, columns, 0, 0))
    with os.fdopen(writing, 'w', encoding='utf-8') as stream:
        yield stream, lambda: read_all(reading)
    os.close(reading)


def read_all(descriptor):
    content = b''
    while select.select([descriptor], [], [], 0.1)[0]:
        content += os.read(descriptor, 65536)
    return content.decode()


def frames(text):
    """The states of the last line of a terminal, one after the other."""
    return [frame.rstrip() for frame in re.split(r'[\r\n]+', text) if frame.strip()]


@pytest.mark.parametrize('columns', [80, 120])
def test_a_terminal_gets_a_bar_with_everything_that_fits_its_width(columns, monkeypatch):
    monkeypatch.delenv('COLUMNS', raising=False)
    with terminal(columns) as (stream, written):
        monkeypatch.setattr('sys.stderr', stream)  # of which tqdm asks for lines too
        shown = progress.Progress(20000, 0, 128, 'images')
        shown.write('First step after 3.4 s')
        shown.update(5000, {'loss': 1.23456, 'accuracy': 0.98765}, 5000, 100.0)
        shown.close()
        stream.flush()
        shown = frames(written())
    assert 'First step after 3.4 s' in shown
    bar = r'step 5000/20000 \|[█▊].* \| loss 1.2346, accuracy 98.77 %, 6,400 images/s, 05:00 left'
    assert re.fullmatch(bar, shown[-1])
    assert all(len(frame) <= columns for frame in shown)


def test_shares_of_time_add_up(clock):
    spent = progress.TimeSpent()
    for kind, seconds in ((progress.EVALUATION, 2), (progress.SAVING, 3), (progress.EVALUATION, 4)):
        with spent.of(kind):
            clock.now += seconds
    assert str(spent) == 'Time 00:09 after the first step: steps 0 %, input 0 %, saving 33 %, evaluation 67 %'
