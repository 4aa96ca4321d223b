"""Which learning rate a batch size calls for."""

from typing import NamedTuple


class LarsRate(NamedTuple):
    """How ResNet-50 trains on ImageNet with LARS.

    Attributes:
        learning_rate: rate at the end of the warm-up.
        warmup_epochs: length of the warm-up.
    """

    learning_rate: float
    warmup_epochs: int


# The released ResNet-50 (tensorflow/tpu, models/official/resnet/lars_util.py): batch sizes below each limit.
_LARS_RATES = {16_384: LarsRate(10.0, 5), 32_768: LarsRate(25.0, 5), 65_536: LarsRate(32.0, 14)}
_LARGEST_LARS_RATE = LarsRate(35.6, 40)


def linearly_scaled(learning_rate, batch_size, base_batch_size=256):
    """Scales a learning rate in proportion to the batch (arXiv 1706.02677, section 2.1).

    Args:
        learning_rate: rate that is right for `base_batch_size`.
        batch_size: number of examples in a mini-batch, over all replicas.
        base_batch_size: number of examples that `learning_rate` was found for.

    Returns:
        The rate for `batch_size`.
    """
    return learning_rate * batch_size / base_batch_size


def resnet50_lars_rate(batch_size):
    """Looks up what the released ResNet-50 trains on ImageNet with: rates that grow, but less than the batch.

    Args:
        batch_size: number of examples in a mini-batch, over all replicas.

    Returns:
        `LarsRate`.
    """
    return next((rate for limit, rate in _LARS_RATES.items() if batch_size < limit), _LARGEST_LARS_RATE)
