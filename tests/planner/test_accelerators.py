import pytest

from lingpipe.planner import accelerators


def test_a_core_of_v3_is_half_of_its_chip():
    v3 = accelerators.find('v3')
    assert (v3.flops, v3.memory_bandwidth) == (123e12 / 2, 900e9 / 2)


def test_gpus_multiply_float32_more_slowly_and_tpus_do_not():
    assert accelerators.find('v100').peak_flops('float32') == 15.7e12
    assert accelerators.find('v100').peak_flops('float16') == 125e12
    assert accelerators.find('v5e').peak_flops('float32') == accelerators.find('v5e').peak_flops('bfloat16')


def test_an_unknown_name_is_refused_with_those_that_are_near():
    with pytest.raises(ValueError, match="accelerator='a1000' is unknown; did you mean a100.*give device_memory alone"):
        accelerators.find('a1000')
