"""The fuzzer's report counts outcomes."""


def test_models_are_counted_by_their_outcomes(load_forking, capsys, table):
    load_forking('equality.fuzz', '--models=1', '--minutes=5', '--seed=0').main([])
    rows = {row['outcome']: row['models'] for row in table(capsys.readouterr().out)}
    assert rows['all'] == '1' and sum(int(number) for number in rows.values()) == 2
