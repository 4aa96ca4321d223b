import pytest


def test_the_parts_of_a_start_add_up(load_benchmark, table, capsys):
    module = load_benchmark('speed.first_step', '--model=params.linear_regression.EightWeights', '--runs=1')
    module.main([])
    printed = capsys.readouterr().out
    *parts, total = table(printed)
    assert [row['part'] for row in parts] == list(module.first_step_process.PHASES)
    for column in ('seconds', 'processor seconds'):
        assert sum(float(row[column]) for row in parts) == pytest.approx(float(total[column]), abs=0.1)
    took = {row['part']: float(row['processor seconds']) for row in parts}
    assert took['imports: TensorFlow Datasets'] == 0
    assert min(took[part] for part in ('imports: TensorFlow and Keras', 'tracing: stages', 'first execution')) > 0
    assert 'Loss of the step: ' in printed
