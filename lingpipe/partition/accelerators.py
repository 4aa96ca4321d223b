"""Speeds and memory of accelerators, and times of layers.

A device is a GPU, a core of a TPU v2 or v3, or a whole chip of a later TPU. Makers state the peak speeds. Times from
peak speeds are lower bounds. An accelerator has `Achieved` speeds only if training steps were measured on it.
"""

import math
from typing import NamedTuple

import tensorflow as tf

from lingpipe import wording
from lingpipe.partition import tensor_sizes
from lingpipe.partition.layer_kernels import Kernel, LayerKernels, Product
from lingpipe.partition.layer_profile import LayerTime

_GB, _GIB = 10**9, 2**30
_TILE = 128  # side of the square of the result that one processor of a GPU computes at a time


class Achieved(NamedTuple):
    """The speeds that training programs reach on an accelerator."""

    matrix_efficiency: float  # part of the peak that matrix products reach while all processors have work
    unaligned_efficiency: float  # the same if rows in memory do not begin at multiples of 16 bytes
    num_processors: int  # how many parts of a matrix product are computed at once
    memory_bandwidth: float  # bytes per second, counting only bytes that kernels must move
    start: float  # seconds that the host takes to start a kernel
    link_bandwidth: float  # bytes per second from one stage to the next
    sum_bandwidth: float  # bytes per second of sums over replicas
    error: float  # relative error that predictions for 9 of 10 steps did not exceed; the fit did not use these steps


class Accelerator(NamedTuple):
    """Memory and speeds of one kind of device."""

    name: str  # name that users write
    memory: int  # bytes of its memory that programs may use
    flops: float  # floating-point operations per second of large matrix products in bfloat16 or float16
    float32_flops: float  # the same with float32
    memory_bandwidth: float  # bytes per second between memory and arithmetic
    link_bandwidth: float  # bytes per second to the next device, one way
    # function from shape and dtype to the bytes that a tensor takes there
    tensor_size: tensor_sizes.TensorSize = tensor_sizes.plain_size
    achieved: Achieved | None = None  # None: there are no measured steps

    def peak_flops(self, dtype: str) -> float:
        """Return the peak floating-point operations per second in matrix products of a dtype, such as 'bfloat16'."""
        return self.float32_flops if dtype == 'float32' else self.flops


def _tpu(name, gibibytes_of_memory, teraflops, gigabytes, link_gigabytes):
    # float32 is as fast as bfloat16, because JAX and TensorFlow by default round matmul operands to bfloat16.
    return Accelerator(name, int(gibibytes_of_memory * _GIB), teraflops * 1e12, teraflops * 1e12, gigabytes * 1e9,
                       link_gigabytes * 1e9, tensor_sizes.tiled_size)


def _gpu(name, gigabytes_of_memory, teraflops, float32_teraflops, gigabytes, link_gigabytes, achieved=None):
    return Accelerator(name, gigabytes_of_memory * _GB, teraflops * 1e12, float32_teraflops * 1e12, gigabytes * 1e9,
                       link_gigabytes * 1e9, achieved=achieved)


# Matrix efficiency: the fastest of many half-precision products, 271.2 TFLOP/s (Bekman, Machine Learning Engineering,
# 'Maximum Achievable Matmul FLOPS'). Processors: NVIDIA's A100 white paper. Sums: nccl-tests on 2 to 8 A100s with
# NVLink, 197 to 229 GB/s of bus bandwidth for 1 GiB, as vTrain has measured them. The other four and the error come
# from `python benchmarks/planned_gpu.py --fit` on measured steps of GPT models: see docs/planning.md.
_A100_ACHIEVED = Achieved(
    matrix_efficiency=0.869, num_processors=108, sum_bandwidth=220e9,
    unaligned_efficiency=0.291, memory_bandwidth=1.29e12, start=60e-6, link_bandwidth=8.1e9, error=0.10)

# TPU peak and bandwidth: Google Cloud TPU documentation, pages 'TPU v3' to 'TPU v6e'. Links, one way: 'How to Scale
# Your Model', chapter 'TPUs'; v2: Jouppi et al., CACM 63(7), 2020, table 3. v2 and v3: half a chip. Memory: what the
# TPU compiler lets a program use (libtpu 0.0.51), which is less than the 8 GiB of a v2 core, say; v4: twice that of a
# core.
# GPUs: NVIDIA's data sheets; half precision without sparsity; float32 as TensorFlow multiplies it by default, which is
# TF32 from A100 on; links: half of NVLink's total, which counts both ways.
ACCELERATORS = {accelerator.name: accelerator for accelerator in [
    _tpu('v2', 7.48, 22.5, 350, 62),
    _tpu('v3', 15.48, 61.5, 450, 100),
    _tpu('v4', 30.5, 275, 1200, 45),
    _tpu('v5e', 15.75, 197, 819, 45),
    _tpu('v5p', 95.73, 459, 2765, 90),
    _tpu('v6e', 31.24, 918, 1638, 90),
    _gpu('p100', 16, 21.2, 10.6, 732, 80),
    _gpu('v100', 16, 125, 15.7, 900, 150),
    _gpu('v100-32gb', 32, 125, 15.7, 900, 150),
    _gpu('a100', 40, 312, 156, 1555, 300, _A100_ACHIEVED),
    _gpu('a100-80gb', 80, 312, 156, 2039, 300, _A100_ACHIEVED),
    _gpu('h100', 80, 989, 494, 3350, 450),
    _gpu('h200', 141, 989, 494, 4800, 450),
]}

# Not a real device: about one core of a server's processor, to compare plans for a machine without accelerators.
CPU = Accelerator('cpu', 0, 50e9, 50e9, 10e9, 5e9)


def find(name: str) -> Accelerator:
    """Return the `Accelerator` called `name`. Raise ValueError if there is none."""
    if name not in ACCELERATORS:
        raise ValueError(
            f'accelerator={name!r} is unknown'
            f'{wording.did_you_mean(str(name), ACCELERATORS, see_all="lingpipe/partition/accelerators.py")} '
            'For one that is not there, give device_memory alone.')
    return ACCELERATORS[name]


def memory_of_gpus() -> int | None:
    """Return the least memory that a local GPU may have, in bytes. Return None without GPUs, or if one is unknown."""
    details = [tf.config.experimental.get_device_details(gpu) for gpu in tf.config.list_physical_devices('GPU')]
    names = [found.get('device_name', '').lower() for found in details]
    known = [[each.memory for each in ACCELERATORS.values() if each.name.split('-')[0] in name] for name in names]
    return min((min(sizes) for sizes in known), default=None) if all(known) else None  # an A100 has 40 or 80 GB


def layer_time(kernels: LayerKernels, accelerator: Accelerator, achieved: Achieved) -> LayerTime:
    """Estimate the times of a layer from the speeds that programs achieved on an accelerator."""
    return LayerTime(*(_pass_time(kernels, accelerator, achieved)
                       for kernels in (kernels.forward, kernels.backward, kernels.recomputed)))


def _pass_time(kernels: list[Kernel], accelerator: Accelerator, achieved: Achieved) -> float:
    """Estimate how many seconds a list of kernels takes, including launches."""
    # The host starts kernels in advance, so the slower of host and device counts.
    return max(len(kernels) * achieved.start, sum(kernel_time(kernel, accelerator, achieved) for kernel in kernels))


def kernel_time(kernel: Kernel, accelerator: Accelerator, achieved: Achieved) -> float:
    """Estimate how many seconds a kernel takes, excluding its launch."""
    arithmetic = _product_time(kernel.product, accelerator, achieved) if kernel.product else 0.0
    # Roofline model (Williams et al., CACM 52(4), 2009).
    return max(arithmetic, kernel.num_bytes / achieved.memory_bandwidth)


def _product_time(product: Product, accelerator: Accelerator, achieved: Achieved) -> float:
    """Estimate how many seconds a matrix product takes."""
    # In each round, every processor computes one tile of the result. The last tiles of a row and the last round take
    # full time (NVIDIA, Matrix Multiplication Background User's Guide, sections 3.1, 3.2).
    tiles = product.num_products * math.ceil(product.rows / _TILE) * math.ceil(product.columns / _TILE)
    rounds = math.ceil(tiles / achieved.num_processors)
    flops = 2 * rounds * achieved.num_processors * _TILE**2 * product.depth
    efficiency = achieved.matrix_efficiency if product.is_aligned else achieved.unaligned_efficiency
    return flops / (efficiency * accelerator.peak_flops(product.dtype))
