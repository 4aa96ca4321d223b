"""The experiment on transfer with a tiny body in the place of AmoebaNet."""

import keras

from lingpipe.layers.keras_params import KerasParams


def test_each_seed_has_a_row_with_three_trainings_on_the_other_digits(load_benchmark, table, monkeypatch, capsys):
    benchmark = load_benchmark('transfer', '--seeds=0', '--max_steps=8')
    monkeypatch.setattr(benchmark, 'body_layers', lambda: [
        KerasParams(keras.layers.AveragePooling2D, pool_size=4, name='pool'), KerasParams(keras.layers.Flatten, name='flatten'),
        KerasParams(keras.layers.Dense, units=16, activation='relu', name='hidden'), KerasParams(keras.layers.Dense, units=5, name='head')])
    benchmark.main([])
    seed, mean = table(capsys.readouterr().out)
    assert (seed.pop('seed'), mean.pop('seed')) == ('0', 'mean') and seed == mean
    assert all(0 <= float(accuracy) <= 100 for accuracy in seed.values())
