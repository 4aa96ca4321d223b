"""The experiment on transfer with a tiny body in the place of AmoebaNet."""

import keras
import pytest

from lingpipe.layers.keras_params import KerasParams

_STEPS, _QUARTER = 4, 1


@pytest.fixture
def transfer(load_benchmark, monkeypatch):
    """The benchmark, whose body has no more than one partition and one micro-batch need."""
    benchmark = load_benchmark('accuracy.transfer', '--seeds=0', f'--max_steps={_STEPS}')
    monkeypatch.setattr(benchmark, 'body_layers', lambda: [
        KerasParams(keras.layers.Flatten, name='flatten'),
        KerasParams(keras.layers.Dense, units=16, activation='relu', name='hidden'),
        KerasParams(keras.layers.Dense, units=5, name='head')])
    monkeypatch.setattr(benchmark.experiments.AmoebaNetDDigits, 'NUM_PARTITIONS', 1)
    monkeypatch.setattr(benchmark.experiments.AmoebaNetDDigits, 'NUM_MICRO_BATCHES', 1)
    return benchmark


def test_each_seed_has_a_row_with_three_training_runs_on_other_digits(transfer, table, monkeypatch, capsys):
    """Of those from scratch only the one that leaves the checkpoint takes place: the others differ from it in data and
    steps."""
    mocked, trained = {_STEPS: 12.5, _QUARTER: 25.0}, []
    train = transfer.accuracy

    def accuracy(logdir, data_dir, dataset, max_steps, seed, rules=None):
        trained.append((dataset, max_steps, seed, rules is not None))
        is_real = rules or dataset == 'low_digits'
        return train(logdir, data_dir, dataset, max_steps, seed, rules) if is_real else mocked[max_steps]

    monkeypatch.setattr(transfer, 'accuracy', accuracy)
    transfer.main([])
    seed, mean = table(capsys.readouterr().out)
    assert (seed.pop('seed'), mean.pop('seed')) == ('0', 'mean') and seed == mean
    whole, transferred, short = map(float, seed.values())
    assert (whole, short) == (mocked[_STEPS], mocked[_QUARTER]) and 0 <= transferred <= 100
    assert trained == [('low_digits', _STEPS, 0, False), ('high_digits', _STEPS, 0, False), (
        'high_digits', _QUARTER, 0, True),
                       ('high_digits', _QUARTER, 0, False)]
