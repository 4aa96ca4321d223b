"""The experiment on groups of replicas at its smallest size."""

import pytest


def test_table_has_examples_as_rows_and_group_sizes_as_columns(
        short_resnet, load_benchmark, monkeypatch, tmp_path, capsys):
    """Only one of the training runs takes place."""
    picture = tmp_path / 'groups.png'
    benchmark = load_benchmark('accuracy.batch_norm_groups', '--num_replicas=2', '--batch_size=160', '--examples=80',
                               '--group_sizes=1,2', '--seeds=0',
                   '--epochs=1', '--filters=8', f'--picture={picture}')
    train = benchmark.digits_accuracy.accuracy
    monkeypatch.setattr(benchmark.digits_accuracy, 'accuracy', lambda described: (
        12.5 if described._group_size == 1 else train(described)))
    benchmark.main([])
    rows = [[cell.strip() for cell in line.strip('|').split('|')] for line in capsys.readouterr().out.splitlines()
            if line.startswith('|')]
    assert rows[0] == ['examples a replica', 'groups of 1', 'groups of 2']
    assert rows[2][0] == '80'
    assert rows[2][1] == '12.50' and 0 <= float(rows[2][2]) <= 100
    assert picture.read_bytes().startswith(b'\x89PNG')


def test_training_runs_differ_only_in_what_batch_norm_sees(load_benchmark):
    benchmark = load_benchmark('accuracy.batch_norm_groups')
    tasks = [benchmark.Experiment(examples, group_size, 0).Task() for examples, group_size in ((2, 1), (2, 8), (8, 1))]
    assert [task.body.num_replicas * task.body.num_micro_batches for task in tasks] == [32, 32, 8]
    assert [task.body.layers[0].batch_norm_group_size for task in tasks] == [1, 8, 1]
    assert len({task.train.max_steps for task in tasks}) == 1


def test_examples_that_do_not_make_the_batch_are_refused(load_benchmark):
    with pytest.raises(ValueError, match='8 replicas cannot make a batch of 64. Make --batch_size a multiple of 24'):
        load_benchmark('accuracy.batch_norm_groups').num_micro_batches(3)
