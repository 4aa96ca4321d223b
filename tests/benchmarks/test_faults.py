"""A real training on loopback, struck once; seconds are not judged."""

import pytest


@pytest.fixture
def results(load_benchmark, table, monkeypatch, tmp_path, capsys):
    """The rows that both benchmarks print of one training: `faults` strikes it, and `soak` ends it when it has gone on."""
    faults = load_benchmark('faults', '--clusters=pipeline', '--faults=chief killed')
    soak = load_benchmark('soak', '--cluster=pipeline', '--minutes=0')
    training = faults.struck_training.StruckTraining('pipeline', tmp_path / 'struck', max_restarts=20, step_timeout_seconds=60)
    monkeypatch.setattr(faults.struck_training, 'StruckTraining', lambda *unused: training)
    rows = faults._rows('pipeline', ['chief killed'])
    row = next(rows)
    monkeypatch.setattr(training, 'start', lambda: None)
    soak.main([])
    rows.close()
    soaked, = table(capsys.readouterr().out)
    monkeypatch.setattr(faults, '_rows', lambda cluster, names: [row])
    faults.main([])
    struck, = table(capsys.readouterr().out)
    return struck, soaked


def test_a_fault_is_told_with_what_follows_it_and_the_weights_are_those_of_an_undisturbed_training(results):
    struck, soaked = results
    assert [struck[name] for name in ('--cluster', 'fault', 'what the training does')] == ['pipeline', 'chief killed', 'goes on']
    assert 0 < float(struck['noticed after s']) < float(struck['steps go on after s'])
    assert [soaked[name] for name in ('--cluster', 'minutes', 'kills', 'processes left')] == ['pipeline', '0', '0', '0']
    assert int(soaked['restarts']) >= 1
    assert int(soaked['steps lost']) >= int(struck['steps lost'])
    assert soaked['weights'] == 'right: the same bits as an undisturbed training'
