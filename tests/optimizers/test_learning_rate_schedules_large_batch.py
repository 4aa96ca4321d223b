import pytest

from lingpipe.optimizers import learning_rate_schedules


def test_the_rate_grows_with_the_batch():
    assert [learning_rate_schedules.linearly_scaled(0.1, batch)
            for batch in (128, 256, 1024, 8192)] == pytest.approx([0.05, 0.1, 0.4, 3.2])
    assert learning_rate_schedules.linearly_scaled(0.2, 96, base_batch_size=32) == pytest.approx(0.6)


@pytest.mark.parametrize('batch_size, learning_rate, warmup_epochs', [
    (4096, 10.0, 5), (8192, 10.0, 5), (16_383, 10.0, 5), (16_384, 25.0, 5), (32_767, 25.0, 5), (32_768, 32.0, 14),
    (65_535, 32.0, 14), (65_536, 35.6, 40)])
def test_rates_and_warm_ups_of_lars_are_the_released_ones(batch_size, learning_rate, warmup_epochs):
    assert learning_rate_schedules.resnet50_lars_rate(batch_size) == (learning_rate, warmup_epochs)
