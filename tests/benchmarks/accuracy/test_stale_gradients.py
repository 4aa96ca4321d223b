"""The benchmark of what workers cost in accuracy."""

import pytest


@pytest.mark.parametrize('model', ['digits', 'pydoc'])
def test_all_runs_see_equally_many_examples(load_benchmark, model):
    benchmark = load_benchmark('accuracy.stale_gradients', f'--model={model}', '--num_examples=640')
    described = benchmark._MODELS[model]
    for update in ('sync', 'async'):
        made = [described(benchmark.Run(update, 4, is_scaled, 0)) for is_scaled in (False, True)]
        params = [each.Model() for each in made]
        assert all(p.train.max_steps * each.Train().batch_size == 640 for p, each in zip(params, made))
        plain, scaled = (p.train.lr_schedule.initial_learning_rate for p in params)
        assert scaled == 4 * plain


def test_each_way_has_a_row_per_number_of_workers(load_forking, table, capsys, tmp_path, monkeypatch):
    picture = tmp_path / 'picture.png'
    benchmark = load_forking(
        'accuracy.stale_gradients', '--num_workers=1,2', '--num_examples=64', f'--picture={picture}')
    result, staleness = benchmark._measured('async', 1, False)
    assert 0 <= result <= 100 and 0 <= staleness <= 1  # two steps are under way at a time
    measured = []
    monkeypatch.setattr(benchmark, '_measured', lambda *run: measured.append(run) or (result, staleness))
    benchmark.main([])
    rows = table(capsys.readouterr().out)
    assert [(row['training'], row['workers']) for row in rows] == [
        (name, count) for name in ('async', 'async, scaled', 'sync', 'sync, scaled') for count in '12']
    assert len(measured) == 6  # one worker has nothing to scale
    assert picture.stat().st_size > 1000
