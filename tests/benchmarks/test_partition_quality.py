"""The benchmark of partition rules at its smallest size, and the figures that its documentation shows of the fixed profile."""

import os
import pathlib
import subprocess
import sys

import pytest

_ROOT = pathlib.Path(__file__).parents[2]
_TINY = ['--rows=2', '--num_cells=2', '--reduction_size=8', '--image_size=16', '--num_blocks=2', '--width=8', '--length=4',
         '--vocabulary=10', '--num_partitions=2,3,4']


@pytest.fixture(scope='module')
def printed(tmp_path_factory):
    folder = tmp_path_factory.mktemp('times')
    environment = {key: value for key, value in os.environ.items() if key not in ('PYTHONPATH', 'TF_ENABLE_ONEDNN_OPTS')}
    finished = subprocess.run(
        [sys.executable, 'benchmarks/partition_quality.py', *_TINY, f'--cache_dir={folder}'], cwd=_ROOT, env=environment,
        capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr[-2000:]
    assert (folder / 'layer_times.json').exists()
    return finished.stdout


def rows(text, profile):
    """Returns the cells of a profile's rows: K, mean, heaviest part by each rule, layers by each rule."""
    lines = [[cell.strip() for cell in line.strip('|').split('|')] for line in text.splitlines() if line.startswith('|')]
    return {int(cells[1]): cells[2:] for cells in lines if cells[0] == profile}


def test_heaviest_parts_of_the_fixed_profile_are_the_published_ones(printed):
    """Measured with torchgpipe and Lingvo themselves: 539, 451, 359 and 528, 362, 451 with an empty first part."""
    found = rows(printed, 'fixed')
    heaviest = {num_partitions: [float(cell.split()[0]) for cell in cells[1:4]] for num_partitions, cells in found.items()}
    assert heaviest == {2: [528, 539, 528], 3: [359, 451, 362], 4: [267, 359, 451]}
    assert found[4][4:] == ['1 2 3 4', '2 2 2 4', '0 3 3 4']


@pytest.mark.parametrize('profile', ['AmoebaNet-D', 'decoder'])
def test_the_exact_cut_of_a_measured_profile_is_never_the_worse_one(printed, profile):
    found = rows(printed, profile)
    assert set(found) == {2, 3, 4}
    for cells in found.values():
        exact, *others = [float(cell.split()[0]) for cell in cells[1:4]]
        assert all(exact <= other for other in others)


def test_the_documentation_shows_the_same_figures_of_the_fixed_profile(printed):
    shown = rows((_ROOT / 'docs/balancing.md').read_text(encoding='utf-8'), 'fixed')
    assert shown.items() >= rows(printed, 'fixed').items()
