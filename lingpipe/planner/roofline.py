"""Times of kernels at the speeds that an accelerator reached, by the roofline model."""

import math

from lingpipe.partition.layer_kernels import Kernel, LayerKernels, Product
from lingpipe.partition.layer_profile import LayerTime
from lingpipe.planner.accelerators import Accelerator

# Side of the square of the result that one processor of a GPU computes at a time.
_TILE = 128


def layer_time(kernels: LayerKernels, accelerator: Accelerator) -> LayerTime:
    """Returns the `LayerTime` of a layer on an accelerator whose achieved figures are known.

    Args:
        kernels: `LayerKernels`.
        accelerator: `Accelerator` that has `achieved`.
    """
    return LayerTime(*(_pass_time(kernels, accelerator)
                       for kernels in (kernels.forward, kernels.backward, kernels.recomputed)))


def _pass_time(kernels, accelerator):
    """Returns the seconds of a pass; the host starts kernels ahead of the device, and the slower of both counts."""
    return max(len(kernels) * accelerator.achieved.start,
               sum(kernel_time(kernel, accelerator) for kernel in kernels))


def kernel_time(kernel: Kernel, accelerator: Accelerator) -> float:
    """Returns the seconds of a kernel once it has started.

    It takes as long as its arithmetic or as moving its bytes, whichever is longer: the roofline model (Williams et al.,
    CACM 52(4), 2009).

    Args:
        kernel: `Kernel`.
        accelerator: `Accelerator` that has `achieved`.
    """
    arithmetic = _product_time(kernel.product, accelerator) if kernel.product else 0.0
    return max(arithmetic, kernel.num_bytes / accelerator.achieved.memory_bandwidth)


def _product_time(product: Product, accelerator: Accelerator) -> float:
    """Returns the seconds of a matrix product.

    The result is cut into tiles, which the processors compute in rounds of one tile each. The last tiles of a row and
    the last round take full time (NVIDIA, Matrix Multiplication Background User's Guide, sections 3.1, 3.2).
    """
    achieved = accelerator.achieved
    tiles = product.num_products * math.ceil(product.rows / _TILE) * math.ceil(product.columns / _TILE)
    rounds = math.ceil(tiles / achieved.num_processors)
    flops = 2 * rounds * achieved.num_processors * _TILE**2 * product.depth
    efficiency = achieved.matrix_efficiency if product.is_aligned else achieved.unaligned_efficiency
    return flops / (efficiency * accelerator.peak_flops(product.dtype))
