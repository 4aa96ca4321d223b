"""Sums of gradients at the smallest size, and the table of the model."""


def _rows(text):
    return [[cell.strip() for cell in line.strip('|').split('|')] for line in text.splitlines() if line.startswith('|')]


def test_every_method_has_a_time(load_forking, capsys):
    load_forking(
        'scaling.gradient_summation', '--num_devices=2', '--depth=10', '--filters=1', '--num_rounds=1').main([])
    header, _, row = _rows(capsys.readouterr().out)[-3:]
    assert header == ['virtual devices', 'add, ms', 'ring, ms', 'two_dimensional, ms']
    assert row[0] == '2' and all(float(cell) > 0 for cell in row[1:])


def test_the_model_needs_no_measurement(load_benchmark, capsys):
    load_benchmark('scaling.gradient_summation', '--num_devices=', '--chips=4', '--model_bytes=800000000',
                   '--accelerator=v3', '--hop_microseconds=500').main([])
    # On a ring 6 steps of 200 MB at 100 GB/s, on a square 2 of 200 and 2 of 100; each with half a millisecond besides.
    assert _rows(capsys.readouterr().out)[2:] == [['4', '6', '4', '1200.0', '600.0', '15.00', '8.00', '1.88']]
