"""The fuzzer's report counts outcomes and shows the smallest program of each kind of failure."""


from tests.fuzz_runs import commands, machine


def test_models_are_counted_by_their_outcomes(load_forking, capsys, table):
    load_forking('equality.fuzz', '--models=1', '--minutes=5', '--seed=0').main([])
    rows = {row['outcome']: row['models'] for row in table(capsys.readouterr().out)}
    assert rows['all'] == '1' and sum(int(number) for number in rows.values()) == 2


def test_events_are_counted_and_a_failure_is_shown_as_a_program(load_benchmark, capsys, monkeypatch, table):
    benchmark = load_benchmark('equality.fuzz_runs', '--shrunken=1')
    monkeypatch.setattr(benchmark.machine, 'shrunken', lambda sequence, kind_of, seconds: sequence)
    killed = ('resume', 0, None, commands.Strike('KILL', 'file', 7))
    benchmark._report([
        machine.Sequence(('a', 'b'), [('report', 0), killed], 'a complete checkpoint was lost: ckpt-3'),
        machine.Sequence(('c', 'd'), [killed], 'a complete checkpoint was lost: ckpt-4'),
        machine.Sequence(('e', 'f'), [('change', 1, 'schedule', '1f1b'), killed], '')], 60.0)
    text = capsys.readouterr().out
    rows = {row['event']: (row['times'], row['broken']) for row in table(text.partition('| kind')[0])}
    assert rows == {'report': ('1', '0'), 'resume + KILL': ('3', '2'), 'change schedule': ('1', '0')}
    assert '| a complete checkpoint was lost | 2 ' in text and "machine.replayed(('a', 'b')" in text
    assert "('c', 'd')" not in text
