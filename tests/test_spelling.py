from lingpipe import spelling


def test_a_million_names_of_a_stranger_are_not_all_compared(monkeypatch):
    compared = []
    monkeypatch.setattr(spelling.difflib.SequenceMatcher, 'set_seq1', lambda self, name: compared.append(name))
    monkeypatch.setattr(spelling.difflib.SequenceMatcher, 'ratio', lambda self: 0.0)
    text = spelling.did_you_mean('a' * 10**6, [f'{number}' + 'b' * 200 for number in range(20_000)])
    assert len([name for name in compared if name]) == 2 * 10_000 and max(map(len, compared)) == 100
    assert len(text) < 1000
