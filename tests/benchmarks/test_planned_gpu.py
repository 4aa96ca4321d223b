"""Steps of A100s that are planned: rows that are read, a fit that finds figures again, and the command by its path."""


import numpy as np
import pytest

HEADER = ('gpus,global_batch,micro_batch,hidden_size,heads,layers,sequence_length,data_parallel,pipeline_parallel,'
          'milliseconds')
ROWS = ['2,4,1,16,2,2,8,1,2,5.5', '2,4,1,16,2,2,8,2,1,4.25', '4,8,2,16,2,2,8,2,2,6']


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


@pytest.mark.slow
def test_each_group_of_pipelines_and_replicas_has_a_row(run_benchmark, rows_file, table):
    text = run_benchmark('planned_gpu', f'--rows={rows_file(ROWS)}', '--vocabulary=24')
    assert [(row['pipeline_parallel'], row['data_parallel'], row['rows']) for row in table(text)] == [
        ('1', '2', '1'), ('2', '1', '1'), ('2', '2', '1'), ('all', 'all', '3')]
    assert 'All: mean absolute error ' in text and ' of 3 rows' in text


def test_blocks_are_spread_evenly_and_recomputed_once(planned_gpu, rows_file):
    row, *_ = planned_gpu.read_rows(rows_file(ROWS))
    plan = planned_gpu.make_plan(row, 24)
    assert [part.layer_names for part in plan.partitions] == [
        ['embedding', 'positions', 'block_0'], ['block_1', 'softmax']]
    accelerator = plan.setting.accelerator
    times = plan.setting.stack.achieved_times(1, accelerator, accelerator.achieved)
    for time, kernels in zip(times, plan.setting.stack.source.kernels(plan.setting.stack.micro_batch_specs(1))):
        again = kernels.forward if time in times[2:4] else []
        start = plan.setting.accelerator.achieved.start
        assert time.backward_seconds == pytest.approx(start * len([*kernels.backward, *again]))


@pytest.mark.slow
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
