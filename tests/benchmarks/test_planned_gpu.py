"""Steps of A100s that are planned: rows that are read, a fit that finds figures again, and the command by its path."""

import pathlib

import numpy as np
import pytest

from tests import forked_programs

HEADER = ('gpus,global_batch,micro_batch,hidden_size,heads,layers,sequence_length,data_parallel,pipeline_parallel,'
          'milliseconds')
ROWS = ['2,4,1,16,2,2,8,1,2,5.5', '2,4,1,16,2,2,8,2,1,4.25', '4,8,2,16,2,2,8,2,2,6']
ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture
def rows_file(tmp_path):
    def write(rows):
        path = tmp_path / 'rows.csv'
        path.write_text('\n'.join([HEADER, *rows]) + '\n')
        return path

    return write


@pytest.fixture
def planned_gpu(load_benchmark):
    return load_benchmark('planned_gpu', '--rows=none', '--vocabulary=24')


def test_each_group_of_pipelines_and_replicas_has_a_row(run_benchmark, rows_file, table):
    text = run_benchmark('planned_gpu', f'--rows={rows_file(ROWS)}', '--vocabulary=24')
    assert [(row['pipeline_parallel'], row['data_parallel'], row['rows']) for row in table(text)] == [
        ('1', '2', '1'), ('2', '1', '1'), ('2', '2', '1'), ('all', 'all', '3')]
    assert 'All: mean absolute error ' in text and ' of 3 rows' in text


def test_a_fit_reports_both_halves_and_what_was_left_out(run_benchmark, rows_file):
    path = rows_file([*ROWS, *(f'4,{batch},2,16,2,2,8,1,2,{batch}' for batch in (2, 4, 6, 8))])
    text = run_benchmark('planned_gpu', f'--rows={path}', '--vocabulary=24', '--fit', '--figures=start',
                         '--leave_out=micro_batch', '--group_by=layers')
    assert 'start=' in text and 'Fitted on: mean ' in text and 'Never fitted on: mean ' in text
    assert '| micro_batch | rows |' in text and text.count('| all    | ') == 3


def test_rows_of_one_half_alone_cannot_be_fitted_on(load_benchmark, rows_file):
    module = load_benchmark('planned_gpu', f'--rows={rows_file(ROWS[:1])}', '--vocabulary=24', '--fit')
    with pytest.raises(module.app.UsageError, match='--fit: all 1 rows fall into one of two halves'):
        module.main([])


def test_the_command_runs_by_its_path_from_any_folder(rows_file, tmp_path):
    program = forked_programs.ForkedProgram(
        [ROOT / 'benchmarks/planned_gpu.py', f'--rows={rows_file(ROWS[:1])}', '--vocabulary=24'], {}, tmp_path)
    printed, errors = program.communicate()
    assert program.returncode == 0, errors[-2000:]
    assert ' of 1 rows' in printed


def test_blocks_are_spread_evenly_and_recomputed_once(planned_gpu, rows_file):
    row, *_ = planned_gpu.read_rows(rows_file(ROWS))
    plan = planned_gpu.make_plan(row, 24)
    assert [part.layer_names for part in plan.partitions] == [
        ['embedding', 'positions', 'block_0'], ['block_1', 'softmax']]
    times = plan.setting.stack.achieved_times(1, plan.setting.accelerator)
    for time, kernels in zip(times, plan.setting.stack.source.kernels(plan.setting.stack.micro_batch_specs(1))):
        again = kernels.forward if time in times[2:4] else []
        start = plan.setting.accelerator.achieved.start
        assert time.backward_seconds == pytest.approx(start * len([*kernels.backward, *again]))


def test_a_fit_finds_the_figures_that_times_were_made_with(planned_gpu, rows_file):
    """Models as small as these take the time of starts alone, so figures are such that all of them count."""
    rows = planned_gpu.read_rows(rows_file([
        f'1,{batch},{micro},{width},2,2,8,{replicas},{stages},1' for batch, micro, width, replicas, stages in [
            (4, 1, 16, 1, 1), (4, 2, 16, 1, 2), (8, 4, 32, 2, 1), (8, 2, 32, 1, 2), (16, 4, 16, 2, 2), (16, 8, 32, 1, 1)]]))
    plans = [planned_gpu.make_plan(row, 25) for row in rows]
    truth = planned_gpu.accelerators.find('a100').achieved._replace(
        unaligned_efficiency=2e-6, memory_bandwidth=1e8, start=6e-5, link_bandwidth=1e7)
    rows = [row._replace(milliseconds=planned_gpu.about(plan, truth)) for row, plan in zip(rows, plans)]
    start = truth._replace(unaligned_efficiency=3e-6, memory_bandwidth=2e8, start=5e-5, link_bandwidth=2e7)
    assert planned_gpu.fit(rows, plans, start) == pytest.approx(truth, rel=1e-2)
    np.testing.assert_allclose(planned_gpu.errors(rows, plans, truth), 0, atol=1e-12)


def test_a_missing_column_and_sizes_that_do_not_divide_are_named(planned_gpu, tmp_path, rows_file):
    path = tmp_path / 'short.csv'
    path.write_text('layers,milliseconds\n2,1.5\n')
    with pytest.raises(ValueError, match='line 2, lacks global_batch, micro_batch, '):
        planned_gpu.read_rows(path)
    with pytest.raises(ValueError, match='line 2: .* does not divide evenly'):
        planned_gpu.read_rows(rows_file(['2,5,2,16,2,2,8,1,2,5.5']))
