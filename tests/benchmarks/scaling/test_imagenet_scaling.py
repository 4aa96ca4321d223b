"""The arithmetic of the scaling model, and the table beside the published times."""

import pytest


def test_calibration_reproduces_its_row_and_published_throughput(load_benchmark):
    benchmark = load_benchmark('scaling.imagenet_scaling')
    row = benchmark.ROWS[1]
    share = benchmark.utilisation(row)
    assert benchmark.predicted_seconds(row, share) == pytest.approx(2611)
    # 62 epochs of 1,281,167 images in 2,611 s on 32 cores of 61.5 TFLOP/s; sums take less than 1 % of it.
    assert share == pytest.approx(62 * 1_281_167 / 2611 / 32 * 6 * 4_089_184_256 / 61.5e12, rel=0.01)


def test_a_prediction_by_hand(load_benchmark):
    benchmark = load_benchmark('scaling.imagenet_scaling')
    row = benchmark.Row(cores=8, batch=1024, epochs=1, published=None)
    # Four chips, 2 x 2: four steps of a microsecond, 102,228,128 bytes times 3/4 at 1e11 bytes a second.
    to_sum = 4e-6 + 102_228_128 * 0.75 / 1e11
    compute = 128 * 24_535_105_536 / 30.75e12
    assert benchmark.predicted_seconds(row, 0.5) == pytest.approx(1_281_167 / 1024 * (compute + to_sum))


def test_more_cores_at_one_batch_take_less_time_but_not_in_proportion(load_benchmark):
    benchmark = load_benchmark('scaling.imagenet_scaling')
    seconds = [benchmark.predicted_seconds(row, 0.4) for row in benchmark.ROWS if row.batch == 32768]
    assert len(seconds) == 4
    assert all(more / 2 < less < more for more, less in zip(seconds, seconds[1:]))


def test_each_row_states_its_error(load_benchmark, tmp_path, capsys):
    picture = tmp_path / 'scaling.png'
    load_benchmark('scaling.imagenet_scaling', '--calibrated_on=128', f'--picture={picture}').main([])
    rows = [[cell.strip() for cell in line.strip('|').split('|')] for line in capsys.readouterr().out.splitlines()
            if line.startswith('|')][2:]
    assert [row[0] for row in rows] == ['8', '32', '64', '128', '256', '512', '1,024', '2,048']
    assert [row[-1].endswith('%') for row in rows] == [False, True, False, False, True, True, True, True]
    assert rows[3][-1] == 'calibrated'
    assert picture.read_bytes().startswith(b'\x89PNG')


def test_a_row_without_a_published_time_cannot_calibrate(load_benchmark):
    with pytest.raises(ValueError, match='--calibrated_on=64 is no published row'):
        load_benchmark('scaling.imagenet_scaling', '--calibrated_on=64').main([])
