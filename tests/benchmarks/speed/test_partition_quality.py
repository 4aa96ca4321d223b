"""The benchmark of partition rules at its smallest size, and the figures that its documentation shows of the fixed
profile."""

import pathlib

import pytest

from lingpipe.layers import amoebanet

_ROOT = pathlib.Path(__file__).parents[3]
_TINY = ['--rows=2', '--num_cells=2', '--reduction_size=8', '--image_size=16', '--num_blocks=1', '--width=8',
         '--length=4',
         '--vocabulary=10', '--num_partitions=2,3']


@pytest.fixture
def fixed(load_benchmark):
    """The rows of the fixed profile, for which nothing need be measured."""
    module = load_benchmark('speed.partition_quality')
    return {num_partitions: list(map(str, module._row('fixed', module._FIXED_MILLISECONDS, num_partitions)[2:]))
            for num_partitions in (2, 3, 4)}


def rows(text, profile):
    """Returns the cells of a profile's rows: K, mean, heaviest part by each rule, layers by each rule."""
    lines = [
        [cell.strip() for cell in line.strip('|').split('|')] for line in text.splitlines() if line.startswith('|')]
    return {int(cells[1]): cells[2:] for cells in lines if cells[0] == profile}


def test_heaviest_parts_of_the_fixed_profile_are_the_published_ones(fixed):
    """Measured with torchgpipe and Lingvo themselves: 539, 451, 359 and 528, 362, 451 with an empty first part."""
    heaviest = {
        num_partitions: [float(cell.split()[0]) for cell in cells[1:4]] for num_partitions, cells in fixed.items()}
    assert heaviest == {2: [528, 539, 528], 3: [359, 451, 362], 4: [267, 359, 451]}
    assert fixed[4][4:] == ['1 2 3 4', '2 2 2 4', '0 3 3 4']


@pytest.fixture
def three_layers(monkeypatch):
    """Of an AmoebaNet only the first three layers are measured."""
    whole = amoebanet.amoebanet_layers
    monkeypatch.setattr(amoebanet, 'amoebanet_layers', lambda *arguments, **fields: whole(*arguments, **fields)[:3])


def test_the_exact_cut_of_a_measured_profile_is_never_the_worse_one(three_layers, run_benchmark, fixed, tmp_path):
    printed = run_benchmark('speed.partition_quality', *_TINY, f'--cache_dir={tmp_path}')
    assert (tmp_path / 'layer_times.json').exists()
    assert fixed.items() >= rows(printed, 'fixed').items()
    for profile in ('AmoebaNet-D', 'decoder'):
        found = rows(printed, profile)
        assert set(found) == set(rows(printed, 'fixed')) == {2, 3}
        for cells in found.values():
            exact, *others = [float(cell.split()[0]) for cell in cells[1:4]]
            assert all(exact <= other for other in others)


def test_the_documentation_shows_the_same_figures_of_the_fixed_profile(fixed):
    shown = rows((_ROOT / 'docs/balancing.md').read_text(encoding='utf-8'), 'fixed')
    assert shown.items() >= fixed.items()
