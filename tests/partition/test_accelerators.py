import pytest

from lingpipe.partition import accelerators
from lingpipe.partition.layer_kernels import Kernel, LayerKernels, Product

ACHIEVED = accelerators.Achieved(
    matrix_efficiency=0.5, unaligned_efficiency=0.1, num_processors=4, memory_bandwidth=1e9, start=0.25,
    link_bandwidth=1.0, sum_bandwidth=1.0, error=0.1)
ACCELERATOR = accelerators.Accelerator('x', 0, flops=8e9, float32_flops=4e9, memory_bandwidth=1.0, link_bandwidth=1.0,
                                       achieved=ACHIEVED)


def seconds(num_bytes, **product):
    whole = Product(256, 256, 1000, 1, 'float16', True)._replace(**product) if product else None
    return accelerators.kernel_time(Kernel(num_bytes, whole), ACCELERATOR, ACHIEVED)


def flops(tiles):
    return 2 * tiles * 128 * 128 * 1000


def test_a_kernel_takes_as_long_as_its_arithmetic_or_its_bytes():
    assert seconds(2e9) == 2.0
    assert seconds(0, rows=256) == pytest.approx(flops(4) / 4e9)
    assert seconds(3e9, rows=256) == 3.0


@pytest.mark.parametrize('sizes, tiles', [
    ({'rows': 1}, 4), ({'rows': 257}, 8), ({'rows': 512, 'num_products': 3}, 24), ({'columns': 100}, 4)])
def test_processors_without_work_wait_for_the_others(sizes, tiles):
    assert seconds(0, **sizes) == pytest.approx(flops(tiles) / 4e9)


def test_products_are_slower_unaligned_and_in_float32():
    assert seconds(0, is_aligned=False) == pytest.approx(flops(4) / 0.8e9)
    assert seconds(0, dtype='float32') == pytest.approx(flops(4) / 2e9)


def test_a_pass_takes_as_long_as_its_kernels_or_as_starting_them():
    small, large = Kernel(1e6, None), Kernel(2e9, None)
    times = accelerators.layer_time(LayerKernels([small] * 5, [small, large], []), ACCELERATOR, ACHIEVED)
    assert times == pytest.approx((5 * 0.25, 2.001, 0.0))


def test_an_unknown_name_is_refused_with_those_that_are_near():
    with pytest.raises(ValueError, match="accelerator='a1000' is unknown; did you mean a100.*give device_memory alone"):
        accelerators.find('a1000')
