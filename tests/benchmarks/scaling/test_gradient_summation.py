"""Sums of gradients at the smallest size, and the table of the model."""

import numpy as np
import pytest
import tensorflow as tf


def _rows(text):
    return [[cell.strip() for cell in line.strip('|').split('|')] for line in text.splitlines() if line.startswith('|')]


def test_every_method_has_a_time_on_devices_and_over_server_processes(load_forking, capsys):
    load_forking('scaling.gradient_summation', '--num_devices=2', '--num_processes=2', '--depth=10', '--filters=1',
                 '--num_rounds=1').main([])
    measured = _rows(capsys.readouterr().out)[-6:]
    for title, table in (('virtual devices', measured[:3]), ('server processes', measured[3:])):
        assert table[0] == [title, 'add, ms', 'ring, ms', 'two_dimensional, ms']
        assert table[2][0] == '2'
        assert all(float(cell) > 0 for cell in table[2][1:])


def test_a_wrong_sum_is_no_result(load_benchmark):
    totals, expected = [tf.constant([1.0, 2.0])], [np.array([1.0, 2.1])]
    with pytest.raises(AssertionError, match=r'ring: a sum of shape \(2,\) is off by 4.8e-02 of its largest value'):
        load_benchmark('scaling.gradient_summation')._check('ring', totals, expected, 2)


def test_the_model_needs_no_measurement_and_draws_itself(load_benchmark, tmp_path, capsys):
    picture = tmp_path / 'sums.png'
    load_benchmark('scaling.gradient_summation', '--num_devices=', '--num_processes=', '--chips=4',
                   '--model_bytes=800000000', '--accelerator=v3',
                   '--hop_microseconds=500', f'--picture={picture}').main([])
    # On a ring 6 steps of 200 MB at 100 GB/s, on a square 2 of 200 and 2 of 100; each with half a millisecond besides.
    assert _rows(capsys.readouterr().out)[2:] == [['4', '6', '4', '1200.0', '600.0', '15.00', '8.00', '1.88']]
    assert picture.read_bytes().startswith(b'\x89PNG')


def test_chips_that_make_no_square_are_refused(load_benchmark):
    with pytest.raises(ValueError, match='--chips has 8, which is no square'):
        load_benchmark('scaling.gradient_summation', '--chips=8').predictions()
