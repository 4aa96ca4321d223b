"""The command is run for each model and each change, and what it learned is a row."""

import pathlib

import pytest

_ROOT = pathlib.Path(__file__).parents[3]


@pytest.fixture
def training_runs(load_benchmark, fork_commands, monkeypatch):
    monkeypatch.chdir(_ROOT)
    fork_commands()
    return load_benchmark('accuracy.training_runs', '--models=tests.programs.tiny_digits',
                          '--model_params_override=train.max_steps=2; task.dtype_policy=mixed_bfloat16')


def test_a_row_has_the_times_and_the_final_metrics(training_runs, table, capsys):
    training_runs.main([])
    row, = table(capsys.readouterr().out)
    assert row['changes'] == 'train.max_steps=2; task.dtype_policy=mixed_bfloat16'
    assert 0 < float(row['s to first step']) and 'accuracy' in row['final Test']


def test_a_command_that_fails_is_an_error_with_what_it_wrote(training_runs):
    with pytest.raises(RuntimeError, match='no_such_field'):
        training_runs.train('tests.programs.tiny_digits', 'train.no_such_field=1')
