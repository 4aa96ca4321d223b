"""The bubble's benchmark at its smallest size, and what it expects of equal partitions against the papers' formulas."""

import pytest

_TINY = ['--model=decoder', '--num_blocks=2', '--width=8', '--sequence_length=4', '--batch_size=2',
         '--num_micro_batches=2',
         '--num_steps=2', '--milliseconds=1']


@pytest.mark.slow
def test_a_row_compares_the_same_step_measured_and_simulated(run_benchmark, table):
    """Equal partitions by hand: F and R take 1, B takes 2, and the B that directly follows its own F recomputes
    nothing.

    ::

        device 0  F0F1......B1--R0B0--        3 of 10 idle
        device 1  ..F0F1B1--R0B0--....        3 of 10 idle
    """
    text = run_benchmark('speed.bubble', *_TINY, '--schedules=gpipe', '--recompute=stage', '--waiting_partitions=')
    row, = table(text)
    assert [row[name] for name in ('layers', 'K', 'schedule', 'recompute')] == ['decoder', '2', 'gpipe', 'stage']
    measured, simulated, own_times = (float(row[f'{name} %']) for name in ('measured', 'simulated', 'own times'))
    assert 0 <= own_times <= measured < 100
    assert float(row['points']) == pytest.approx(measured - simulated, abs=0.11)
    assert float(row['work ms']) <= float(row['step ms'])
    assert row['equal %'] == '30.0'
    assert f'differ by {abs(float(row["points"])):.1f} percentage points at most' in text


def test_devices_that_wait_are_compared_with_the_bubbles_of_the_papers(run_benchmark, table):
    """Over ideal, 1 / (V M) for the interleaved schedule (arXiv 2104.04473, section 2.2), 1 / 3 M for ZB-H1
    (2401.10241)."""
    rows = table(run_benchmark(
        'speed.bubble', *_TINY, '--schedules=interleaved_1f1b,zb_h1', '--recompute=', '--waiting_partitions=2'))
    assert [(row['layers'], row['schedule'], row['equal %']) for row in rows] == [
        ('waiting', 'interleaved_1f1b', f'{100 * (1 / 4) / (1 + 1 / 4):.1f}'),
        ('waiting', 'zb_h1', f'{100 * (1 / 6) / (1 + 1 / 6):.1f}')]
