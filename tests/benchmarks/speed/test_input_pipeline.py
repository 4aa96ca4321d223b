"""The benchmark of the image input runs at its smallest size and measures what it says; the figures are not judged."""

import io

import numpy as np
import pytest
from PIL import Image

from lingpipe.input import image_input


@pytest.fixture
def input_pipeline(load_benchmark, tmp_path):
    return load_benchmark(
        'speed.input_pipeline', '--num_images=6', '--num_files=2', '--batch_size=3', '--image_size=8',
        '--step_milliseconds=0',
        '--seconds=0', '--warmup_seconds=0', '--rounds=1', '--threads=2', f'--pictures={tmp_path}')


def _once_for_each_cache_and_what_is_added(input_pipeline):
    """Returns a function that measures as the benchmark does, but configurations that are alike in these once only."""
    measure, found = input_pipeline.measure, {}

    def measure_once(data_dir, fields):
        kind = fields['cache'], frozenset(fields.keys() - input_pipeline.BASELINE.keys())
        if kind not in found:
            found[kind] = measure(data_dir, fields)
        return found[kind]

    return measure_once


def test_each_configuration_has_a_row_and_a_bar(input_pipeline, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(input_pipeline, 'OPTIMISATIONS', {'prefetch': {'prefetch': None}})
    monkeypatch.setattr(input_pipeline, 'measure', _once_for_each_cache_and_what_is_added(input_pipeline))
    input_pipeline.main([])
    printed = capsys.readouterr().out
    table, threads = ([line for line in part.splitlines() if line.startswith('| ')][1:]
                      for part in printed.split('\n\n')[-4:-2])
    assert len(table) == 4 + 3 + 2 + 2
    assert [row.split('|')[1].strip() for row in threads] == ['2, encoded images cached', '2, decoded images cached']
    assert table[0].split('|')[3].strip() == '1.00'
    for name in ('input_pipeline.png', 'input_threads.png'):
        assert Image.open(tmp_path / name).size[0] == 760


def test_each_optimisation_is_one_step_away_from_none_and_from_all(input_pipeline):
    found = input_pipeline.configurations()
    starts = {'alone': 'baseline', **{f'all but, {cache}': f'all, {cache}' for cache in input_pipeline.CACHES}}
    changes = {**input_pipeline.CACHES, **input_pipeline.OPTIMISATIONS}
    measured = [(group, name) for group, name in found if group in starts]
    assert len(measured) == 6 + 4 + 3
    for group, name in measured:
        start = found['', starts[group]]
        assert {field for field in start if found[group, name][field] != start[field]} == set(changes[name])


def test_the_measured_fields_are_those_of_the_input(input_pipeline):
    for fields in input_pipeline.configurations().values():
        image_input.ImageInput.Params().Set(**fields)


def test_photographs_are_alike_in_size_and_differ(load_benchmark, tmp_path):
    photographs_dataset = load_benchmark('speed.photographs_dataset')
    mean = photographs_dataset.prepare(tmp_path, num_images=4, num_files=2)
    stored = photographs_dataset.Photographs(data_dir=tmp_path).as_dataset(split='train')
    images = [example['image'].numpy() for example in stored]
    assert 40_000 < mean < 160_000
    for image in images:
        height, width, channels = image.shape
        assert channels == 3 and width / height == pytest.approx(4 / 3, abs=0.01) and 445 <= width <= 555
    assert len({image.tobytes() for image in images}) == 4


def test_bars_are_as_long_as_their_values(load_benchmark):
    chart = load_benchmark('support.bar_chart').png({'one': {'a': 10.0, 'b': 5.0}, 'two': {'c': 2.5}}, 'images/s')
    pixels = np.asarray(Image.open(io.BytesIO(chart)).convert('RGB')).astype(int)
    coloured = (np.ptp(pixels, axis=2) > 60).sum(axis=1)
    lengths = [length for index, length in enumerate(coloured) if length and not coloured[index - 1]]
    assert lengths == pytest.approx([lengths[0] * part for part in (1, 0.5, 0.25)], abs=2)
