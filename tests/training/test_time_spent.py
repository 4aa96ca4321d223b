"""Where time goes, by a clock that only moves when it is told to."""

import pytest

from lingpipe.training import time_spent
from tests.programs import tiny_digits


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 100.0

        def monotonic(self):
            return self.now

    fake = Clock()
    monkeypatch.setattr(time_spent, 'time', fake)
    return fake


def test_a_scope_inside_of_another_counts_once(clock):
    spent = time_spent.TimeSpent()
    with spent.of(time_spent.EVALUATION):
        clock.now += 2
        with spent.of(time_spent.SAVING):
            clock.now += 3
        clock.now += 4
    assert spent.total == 9
    assert spent.shares() == pytest.approx({'steps': 0, 'input': 0, 'saving': 3 / 9, 'evaluation': 6 / 9})


def test_a_scope_that_fails_is_counted(clock):
    spent = time_spent.TimeSpent()
    with pytest.raises(KeyError), spent.of(time_spent.SAVING):
        clock.now += 5
        raise KeyError
    assert spent.total == 5


def test_before_any_time_there_are_no_shares():
    assert time_spent.TimeSpent().shares() == {}


def test_a_run_tells_how_long_it_waited_for_its_input(tiny, tmp_path, capsys):
    made = tiny.trainer(tmp_path, 'StarvedDigits', train__max_steps=4, train__steps_per_loop=2)
    made.run()
    assert float(made._program.input_seconds) >= 4 * tiny_digits.SLOW_SECONDS * 0.99
    told = capsys.readouterr().err.splitlines()[-1]
    shares = {word.split()[0]: int(word.split()[1]) for word in told.partition(': ')[2].split(', ')}
    assert told.startswith('Time ') and list(shares) == ['steps', 'input', 'saving', 'evaluation']
    assert shares['input'] > 0 and sum(shares.values()) == pytest.approx(100, abs=2)
