"""Every benchmark runs at its smallest size and reports all its configurations; the figures themselves are not
judged."""

import pathlib

import pytest

from tests import forked_programs

_ROOT = pathlib.Path(__file__).parents[2]


# A process that the program starts is not forked.
_COMMAND = """
import importlib, runpy
from lingpipe.cluster import waits
importlib.reload(waits)
runpy.run_module('benchmarks.{name}', run_name='__main__')
"""


def _run(name, *arguments):
    """Run a benchmark from the project root in a forked process; return what it printed."""
    program = forked_programs.ForkedProgram(
        ['-c', _COMMAND.format(name=name), *arguments], {'PYTHONPATH': str(_ROOT)}, _ROOT, with_one_dnn=True)
    printed, errors = program.communicate()
    assert program.returncode == 0, errors[-2000:]
    assert 'Machine: ' in printed
    return printed


@pytest.fixture
def run_main(load_forking, capsys):
    """Return a function that runs a benchmark's `main`, whose measurements have processes of their own; give what it
    printed."""
    def run(name, *arguments):
        load_forking(name, *arguments).main([])
        return capsys.readouterr().out

    return run


def test_a_command_prints_and_writes_what_a_process_of_its_own_measured(table, tmp_path):
    report = tmp_path / 'report.md'
    text = _run('memory.memory_curves', '--model=decoder', '--num_blocks=1', '--width=8', '--sequence_length=4',
                '--num_partitions=1',
                '--counts=1', '--schedules=gpipe', '--recompute=none', f'--output={report}', f'--csv={tmp_path}/report.csv')
    assert report.read_text() == text
    assert 'schedule,recompute,M=1\ngpipe,none,' in (tmp_path / 'report.csv').read_text()
    row, = table(text)
    assert (row['schedule'], row['recompute']) == ('gpipe', 'none') and float(row['M=1'] or 0) >= 0
    assert 'TF_ENABLE_ONEDNN_OPTS=1' in text


def test_step_time_compares_the_same_computation_in_every_row(run_main, table):
    whole, micro_batched, kept, recomputed = table(run_main(
        'speed.step_time', '--model=decoder', '--num_blocks=2', '--width=32', '--sequence_length=8', '--batch_size=4',
        '--num_micro_batches=2', '--num_steps=1'))
    assert whole['configuration'] == 'plain layers, whole batch'
    assert kept['configuration'] == "2 partitions, gpipe, recompute='none'"
    assert recomputed['configuration'] == "2 partitions, gpipe, recompute='stage'"
    losses = [float(row['loss']) for row in (micro_batched, kept, recomputed)]
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-4)
    # Three places for two devices and two micro-batches, partitions that differ a little; one of two is recomputed.
    assert 0.75 <= float(kept['ideal']) < 1.0
    assert float(kept['ideal']) < float(recomputed['ideal']) < 4 / 3 * float(kept['ideal'])
    # The allocator does not count tensors as small as these: their peak may be 0, and is left out where nothing is
    # counted.
    assert all(float(row['seconds']) > 0 and float(row['peak MiB'] or 0) >= 0 for row in (
        whole, micro_batched, kept, recomputed))


def test_memory_curves_grow_with_gpipe_and_not_with_1f1b(run_main, table):
    rows = table(run_main('memory.memory_curves', '--model=decoder', '--num_blocks=1', '--width=64',
                          '--sequence_length=64',
                           '--counts=2,6', '--schedules=gpipe,1f1b', '--recompute=none'))
    if not rows[0]['M=6']:
        pytest.skip('TensorFlow counts no memory on this processor.')
    growth = {row['schedule']: float(row['M=6']) / float(row['M=2']) for row in rows}
    assert growth['gpipe'] > 1.5 * growth['1f1b']


def test_fits_in_memory_says_how_each_configuration_ended(run_main, table):
    rows = table(run_main('memory.fits_in_memory', '--num_blocks=1', '--width=8', '--sequence_length=4',
                          '--batch_size=2', '--num_micro_batches=2', '--num_steps=2', '--cap_mib=4000'))
    assert [row['cap'] for row in rows] == ['none', '4000 MiB', '4000 MiB', '4000 MiB']
    assert all(row['outcome'].startswith('trains: loss ') for row in rows)
