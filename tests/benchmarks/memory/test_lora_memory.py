"""The benchmark of LoRA counts what is trained, and measures both ways in processes of their own."""

import pytest

from tests import needs

pytestmark = needs.keras_hub
SIZES = ['--num_layers=2', '--width=32', '--batch_size=4', '--sequence_length=8', '--num_steps=2']


@pytest.fixture(name='benchmark')
def benchmark_fixture(load_benchmark):
    return load_benchmark('memory.lora', *SIZES)


def test_slots_are_two_numbers_for_each_trained_parameter(benchmark):
    for rank, num_trained in ((None, 1024 * 32 + 2 * (12 * 32 * 32 + 13 * 32) + 2 * 32),
                              (4, 2 * (32 * 4 * 4 + 4 * 3 * 8))):
        model, inputs, targets = benchmark.make_model(rank)
        model.train_on_batch(inputs, targets)
        assert benchmark._num_values(model.trainable_variables) == num_trained
        assert benchmark.slot_bytes(model.optimizer) == 2 * 4 * num_trained


def test_it_reports_a_table(benchmark, capsys):
    benchmark.main([])
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith('| everything') and '| 100.00% |' in lines[2]
    assert lines[3].startswith('| LoRA, rank 4 | 1,216 ')
