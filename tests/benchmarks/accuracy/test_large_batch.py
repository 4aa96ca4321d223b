"""The experiment on large batches at its smallest size, and the picture of its result."""

import io

import numpy as np
from PIL import Image, ImageColor

_TINY = ['--batch_sizes=40', '--seeds=0', '--epochs=1', '--filters=8']


def test_a_row_has_both_optimizers_and_divergence_counts_as_chance(
        short_resnet, load_benchmark, tmp_path, capsys):
    picture = tmp_path / 'large_batch.png'
    load_benchmark('accuracy.large_batch', *_TINY, '--sgd_rates=1e30', '--lars_rates=1',
                   f'--picture={picture}').main([])
    text = capsys.readouterr().out
    (row,) = [line.strip('|').split('|') for line in text.splitlines() if line.startswith('| 40')]
    batch, steps, sgd, lars = map(float, row)
    assert (batch, steps, sgd) == (40, 36, 10.0)
    assert 0 <= lars <= 100
    assert 'Machine: ' in text
    assert picture.read_bytes().startswith(b'\x89PNG')


def test_several_seeds_give_mean_and_range(load_benchmark):
    assert load_benchmark('accuracy.digits_accuracy').mean_and_range([98.0, 99.0, 97.0]) == '98.00 (97.00 to 99.00)'


def _rows_of(picture, colour):
    """Returns the mean row of the pixels of a colour in each third of the picture."""
    pixels = np.asarray(Image.open(io.BytesIO(picture)).convert('RGB'))
    rows, columns = np.nonzero(np.all(pixels == ImageColor.getrgb(colour), axis=-1))
    thirds = np.array_split(np.arange(64, pixels.shape[1] - 96), 3)
    return [rows[np.isin(columns, third)].mean() for third in thirds]


def test_lines_rise_with_their_values_and_lie_as_far_apart(load_benchmark):
    chart = load_benchmark('support.line_chart')
    picture = chart.png({'falls': [90.0, 60.0, 20.0], 'stays': [90.0, 90.0, 90.0]}, [32, 128, 512], 'batch', '%')
    falls, stays = (_rows_of(picture, colour) for colour in chart._COLOURS[:2])
    assert falls[0] < falls[1] < falls[2]
    assert np.ptp(stays) < 3
    assert stays[2] < falls[2] - 100


def test_a_line_ends_where_training_diverged(load_benchmark):
    chart, nan = load_benchmark('support.line_chart'), float('nan')
    sizes = [1, 2, 3]
    picture = chart.png({'ends': [90.0, 60.0, nan], 'never began': [nan] * 3}, sizes, 'batch', '%')
    ends, missing = (np.asarray(Image.open(io.BytesIO(picture)).convert('RGB')) == ImageColor.getrgb(colour)
                     for colour in chart._COLOURS[:2])
    columns = np.flatnonzero(ends.all(-1).any(0))
    assert columns.size and not missing.all(-1).any()
    assert columns.max() < chart._Chart([60.0, 90.0], 3, 760, 400).x(1) + 60  # its name is behind its last point


def test_the_scale_has_round_numbers_around_all_values(load_benchmark):
    chart = load_benchmark('support.line_chart')._Chart([93.4, 99.2], 2, 400, 300)
    assert (chart.least, chart.greatest, chart.unit) == (92.0, 100.0, 2.0)
    flat = load_benchmark('support.line_chart')._Chart([50.0], 1, 400, 300)
    assert flat.least <= 50 < flat.greatest
