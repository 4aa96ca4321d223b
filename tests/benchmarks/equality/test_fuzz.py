"""The fuzzer's report counts outcomes and shows the smallest program of each kind of failure."""

import collections

from tests.fuzz import comparison


def test_models_are_counted_by_their_outcomes(load_forking, capsys, table):
    load_forking('equality.fuzz', '--models=1', '--minutes=5', '--seed=0').main([])
    rows = {row['outcome']: row['models'] for row in table(capsys.readouterr().out)}
    assert rows['all'] == '1' and sum(int(number) for number in rows.values()) == 2


def test_a_failure_is_shown_as_a_program(load_forking, capsys, monkeypatch):
    benchmark = load_forking('equality.fuzz', '--shrunken=1')
    monkeypatch.setattr(benchmark, '_shrunken', lambda *failure: f'program of {failure}')
    failures = {(comparison.DIFFERENT, 'loss of step'): [(7, 'loss of step 0'), (9, 'loss of step 1')],
                (comparison.CRASHED, 'KeyError'): [(8, 'KeyError at x.py:3')]}
    benchmark._report(
        collections.Counter(different=2, crashed=1), failures, collections.Counter({'Too many …': 3}), 60.0)
    text = capsys.readouterr().out
    assert "program of (7, 'different', 'loss of step 0')" in text and 'program of (8' not in text
    assert 'Too many …' in text and '3 models' in text
