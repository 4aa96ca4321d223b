"""What the pixels of each dataset are scaled by before a network sees them."""

import numpy as np
import tensorflow as tf

# Mean and standard deviation of each channel over the training images, pixels scaled to [0, 1].
_PIXEL_STATISTICS = {
    'digits': ([0.3053], [0.3760]),
    'cifar10': ([0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]),
    'cifar100': ([0.5071, 0.4865, 0.4409], [0.2673, 0.2564, 0.2762]),
}

# Everything else, ImageNet among it: to [-1, 1], as Inception and AmoebaNet were trained.
_ONE_RANGE = ([0.5], [0.5])


def normalize(images, dataset):
    """Scales pixels to about zero mean and unit variance, or to [-1, 1] where the dataset's statistics are not known.

    Args:
        images: uint8 [batch, height, width, channels].
        dataset: name of the dataset, without version or config.

    Returns:
        float32 of the same shape.
    """
    statistics = _PIXEL_STATISTICS.get(dataset, _ONE_RANGE)
    mean, deviation = (_for_channels(statistic, images.shape[-1]) for statistic in statistics)
    lowest, highest = -mean / deviation, (1 - mean) / deviation
    axis = -1
    if len(set(lowest)) == len(set(highest)) == 1:  # one range for all channels is much faster
        lowest, highest = lowest[0], highest[0]
    else:
        axis = images.shape.rank - 1
    # Pixels are quantised numbers: one operation instead of three, on what may be the largest tensors of an input.
    return tf.raw_ops.Dequantize(
        input=tf.bitcast(images, tf.quint8), min_range=lowest, max_range=highest, mode='MIN_COMBINED', axis=axis)


def _for_channels(statistic, num_channels):
    # A gray image of a coloured dataset, or the other way round: the channels' average serves all.
    if len(statistic) != num_channels:
        statistic = [np.mean(statistic)] * num_channels
    return np.array(statistic, np.float32)
