"""What the bubble's benchmark expects of equal partitions, against the papers' formulas."""


_TINY = ['--model=decoder', '--num_blocks=2', '--width=8', '--sequence_length=4', '--batch_size=2',
         '--num_micro_batches=2',
         '--num_steps=2', '--milliseconds=1']


def test_devices_that_wait_are_compared_with_the_bubbles_of_the_papers(run_benchmark, table):
    """Over ideal, 1 / (V M) for the interleaved schedule (arXiv 2104.04473, section 2.2), 1 / 3 M for ZB-H1
    (2401.10241)."""
    rows = table(run_benchmark(
        'speed.bubble', *_TINY, '--schedules=interleaved_1f1b,zb_h1', '--recompute=', '--waiting_partitions=2'))
    assert [(row['layers'], row['schedule'], row['equal %']) for row in rows] == [
        ('waiting', 'interleaved_1f1b', f'{100 * (1 / 4) / (1 + 1 / 4):.1f}'),
        ('waiting', 'zb_h1', f'{100 * (1 / 6) / (1 + 1 / 6):.1f}')]
