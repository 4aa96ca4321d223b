"""Sizes of the models of GPipe's Table 1 (arXiv 1811.06965) as the benchmark plans them, against the published ones."""

import pytest


def test_transformers_have_the_published_size(load_benchmark):
    """Table 1: Transformer-13 has 785.8 million parameters; at 12 bytes each they take 8.8 GiB."""
    gpipe_tables = load_benchmark('memory.gpipe_tables')
    millions, lasting, gradients, _ = gpipe_tables._totals(gpipe_tables.transformer_plan(13, 1, 'stage'), 2**30)
    assert millions == pytest.approx(785.8, abs=0.05)
    assert lasting == pytest.approx(8.8, abs=0.05)
    assert gradients == pytest.approx(lasting / 3, rel=1e-3)


def test_the_deepest_transformer_fits_and_a_deeper_one_does_not(load_benchmark):
    gpipe_tables = load_benchmark('memory.gpipe_tables')
    row = gpipe_tables._row(2, 0, 0.0, 0.0, 0.0, 'layer')
    assert row[0:2] == [2, 'layer'] and row[-1] == 'yes'
    assert not gpipe_tables.transformer_plan(row[3] + 1, 2, 'layer').fits


def test_weights_and_slots_of_an_amoebanet_take_twelve_bytes_a_parameter(short_amoebanet, load_benchmark):
    gpipe_tables = load_benchmark('memory.gpipe_tables')
    found = gpipe_tables.amoebanet_plan(2, 64, 2, 'layer')
    millions, lasting, gradients, activations = gpipe_tables._totals(found, 1e6)
    assert lasting == pytest.approx(12 * millions, rel=0.01)
    assert gradients == pytest.approx(4 * millions)
    assert lasting + gradients + activations == pytest.approx(sum(found.device_bytes) / 1e6)
