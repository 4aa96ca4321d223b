"""ResNet version 1.5 for image classification. A pipeline can cut the network between any two layers.

The network of He et al. 2015 (arXiv 1512.03385) has two changes here (arXiv 1706.02677, section 5.1). In a bottleneck,
the 3x3 convolution shrinks the image. The last batch norm of each block starts with scale zero.
"""

from typing import Any

import keras
import tensorflow as tf

from lingpipe import hyperparams
from lingpipe.layers import base_layer, batch_normalization

# Depth -> (blocks in each group, whether they are bottlenecks): table 1 of the paper, and a smaller network.
_DEPTHS = {
    10: ((1, 1, 1, 1), False), 18: ((2, 2, 2, 2), False), 34: ((3, 4, 6, 3), False), 50: ((3, 4, 6, 3), True),
    101: ((3, 4, 23, 3), True), 152: ((3, 8, 36, 3), True)}
_EXPANSION = 4


class ResNetLayer(base_layer.BaseLayer):
    """The base class of ResNet layers."""

    @classmethod
    def Params(cls) -> base_layer.LayerParams:
        p = super().Params()
        p.Define('batch_norm_momentum', 0.9, 'Momentum, in [0, 1), of the moving averages of batch norm.')
        p.Define('batch_norm_group_size', 1, 'Number of replicas that share the statistics of batch norm.')
        return p

    def _convolution(self, name, filters, kernel_size, strides=1, **fields):
        return ResNetConvolution.Params().Set(
            name=name, dtype_policy=self.dtype_policy.name, batch_norm_momentum=self.params.batch_norm_momentum,
            batch_norm_group_size=self.params.batch_norm_group_size, filters=filters, kernel_size=kernel_size,
            strides=strides, **fields).Instantiate()


class ResNetConvolution(ResNetLayer):
    """A convolution without a bias, followed by batch norm and an optional ReLU.

    Opposite sides of the image get equal padding.
    """

    @classmethod
    def Params(cls) -> base_layer.LayerParams:
        p = super().Params()
        p.Define('filters', None, 'Number of output channels.')
        p.Define('kernel_size', None, 'Odd height and width of the kernel.')
        p.Define('strides', 1, 'Strides in both directions.')
        p.Define('relu', True, 'Whether a ReLU comes last.')
        p.Define('starts_at_zero', False, 'Whether the scale of the batch norm is 0 at first.')
        return p

    def __init__(self, params: hyperparams.Params, **kwargs: Any) -> None:
        super().__init__(params, **kwargs)
        # With strides 2 and an even size, 'same' padding would be larger on one side.
        self._padding = params.kernel_size // 2 if params.strides > 1 else 0
        initializer = keras.initializers.VarianceScaling(2.0, 'fan_out', 'truncated_normal')
        self.convolution = keras.layers.Conv2D(
            params.filters, params.kernel_size, params.strides, 'valid' if self._padding else 'same', use_bias=False,
            kernel_initializer=initializer, name='convolution', dtype=self.dtype_policy)
        self.batch_norm = batch_normalization.BatchNormalization(
            group_size=params.batch_norm_group_size, momentum=params.batch_norm_momentum, epsilon=1e-5,
            gamma_initializer='zeros' if params.starts_at_zero else 'ones', name='batch_normalization',
            dtype=self.dtype_policy)

    def build(self, input_shape: Any) -> None:
        batch, height, width, channels = input_shape
        self.convolution.build((batch, height + 2 * self._padding, width + 2 * self._padding, channels))
        self.batch_norm.build(self.compute_output_shape(input_shape))

    def call(self, inputs: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """Map `[batch, h, w, channels]` to `[batch, h / strides, w / strides, filters]`, rounded up."""
        padding = (self._padding, self._padding)
        x = keras.ops.pad(inputs, ((0, 0), padding, padding, (0, 0))) if self._padding else inputs
        x = self.batch_norm(self.convolution(x), training=training)
        return keras.ops.relu(x) if self.params.relu else x

    def compute_output_shape(self, input_shape: Any) -> tuple:
        batch, height, width, _ = input_shape
        strides = self.params.strides
        return batch, -(-height // strides), -(-width // strides), self.params.filters


class ResNetStem(ResNetLayer):
    """A 7x7 convolution and a max pool, both with strides 2. Small images get a 3x3 convolution instead."""

    @classmethod
    def Params(cls) -> base_layer.LayerParams:
        p = super().Params()
        p.Define('filters', 64, 'Number of output channels.')
        p.Define('for_small_images', False, 'Whether images, as in CIFAR, are too small to be shrunk here.')
        return p

    def __init__(self, params: hyperparams.Params, **kwargs: Any) -> None:
        super().__init__(params, **kwargs)
        size, strides = (3, 1) if params.for_small_images else (7, 2)
        self.convolution = self._convolution('convolution', params.filters, size, strides)
        self.pooling = None
        if not params.for_small_images:
            self.pooling = keras.layers.MaxPooling2D(3, 2, 'same', name='pooling', dtype=self.dtype_policy)

    def build(self, input_shape: Any) -> None:
        if len(input_shape) != 4 or None in tuple(input_shape[1:]):
            raise ValueError(f'ResNetStem received images of shape {tuple(input_shape)}; it needs [batch, height, '
                             'width, channels] with a known height and width. Resize the images in the input pipeline.')
        self.convolution.build(input_shape)

    def call(self, inputs: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """Map `[batch, h, w, channels]` to `[batch, h / 4, w / 4, filters]`. With `for_small_images`, keep h and w."""
        x = self.convolution(inputs, training=training)
        return self.pooling(x) if self.pooling else x


class ResNetBlock(ResNetLayer):
    """Convolutions with a shortcut around them. If size or channels change, the shortcut is a 1x1 convolution.

        bottleneck   x -+- 1x1 -> 3x3, strides -> 1x1 to 4 times the filters -+- add -> ReLU
        basic        x -+- 3x3, strides -> 3x3 -------------------------------+
                        +- x, or 1x1 with strides ----------------------------+

    Batch norm follows each convolution. A ReLU follows each convolution except the last one of a path. The scale of the
    last batch norm starts at zero, and the output at first depends only on the shortcut.
    """

    @classmethod
    def Params(cls) -> base_layer.LayerParams:
        p = super().Params()
        p.Define('filters', None, 'Channels of the first convolution.')
        p.Define('strides', 1, 'Strides in both directions.')
        p.Define('bottleneck', True, 'Whether a 3x3 is between two 1x1, or two 3x3 alone.')
        return p

    def __init__(self, params: hyperparams.Params, **kwargs: Any) -> None:
        super().__init__(params, **kwargs)
        filters, last = params.filters, {'relu': False, 'starts_at_zero': True}
        if params.bottleneck:
            self.convolutions = [
                self._convolution('convolution_0', filters, 1),
                self._convolution('convolution_1', filters, 3, params.strides),
                self._convolution('convolution_2', _EXPANSION * filters, 1, **last)]
        else:
            self.convolutions = [self._convolution('convolution_0', filters, 3, params.strides),
                                 self._convolution('convolution_1', filters, 3, **last)]
        self.shortcut: Any = None

    def build(self, input_shape: Any) -> None:
        shape = input_shape
        for convolution in self.convolutions:
            convolution.build(shape)
            shape = convolution.compute_output_shape(shape)
        if tuple(shape[1:]) != tuple(input_shape[1:]):
            self.shortcut = self._convolution('shortcut', shape[-1], 1, self.params.strides, relu=False)
            self.shortcut.build(input_shape)

    def call(self, inputs: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """Map `[batch, height, width, channels]` to `[batch, height / strides, width / strides, output channels]`."""
        x = inputs
        for convolution in self.convolutions:
            x = convolution(x, training=training)
        return keras.ops.relu(x + (self.shortcut(inputs, training=training) if self.shortcut else inputs))


class ResNetHead(base_layer.BaseLayer):
    """A global average pool, then a dense layer. The logits are at least float32."""

    @classmethod
    def Params(cls) -> base_layer.LayerParams:
        p = super().Params()
        p.Define('num_classes', 1000, 'Number of classes.')
        return p

    def __init__(self, params: hyperparams.Params, **kwargs: Any) -> None:
        super().__init__(params, **kwargs)
        self.dense = keras.layers.Dense(
            params.num_classes, kernel_initializer=keras.initializers.RandomNormal(stddev=0.01), name='dense',
            dtype=self.dtype_policy)

    def build(self, input_shape: Any) -> None:
        self.dense.build((input_shape[0], input_shape[-1]))

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Map `[batch, height, width, channels]` to logits `[batch, num_classes]`."""
        return base_layer.as_logits(self.dense(keras.ops.mean(inputs, axis=(1, 2))))


def resnet_layers(depth: int = 50, num_classes: int = 1000, filters: int = 64, for_small_images: bool = False,
                  batch_norm_momentum: float = 0.9, batch_norm_group_size: int = 1) -> list[base_layer.LayerParams]:
    """Return the Params of a ResNet's layers, from the image to the logits.

        stem, group_0_block_0, ..., group_3_block_2, head

    Each of the four groups has twice the filters of the previous group. In groups 1 to 3, the first block halves the
    image.

    Args:
        depth: number of layers with weights: 10, 18, 34, 50, 101 or 152.
        filters: channels of the stem and of the first group; fewer than 64 make a narrow network.
        for_small_images: whether the stem keeps height and width; otherwise, the stem divides both by 4.

    Raises:
        ValueError: there is no network of that depth.
    """
    if depth not in _DEPTHS:
        raise ValueError(
            f'resnet_layers: depth={depth!r} is none of {sorted(_DEPTHS)}. Set it to one of them, such as 50.')
    batch_norm = {'batch_norm_momentum': batch_norm_momentum, 'batch_norm_group_size': batch_norm_group_size}
    blocks_of_groups, bottleneck = _DEPTHS[depth]
    stem = ResNetStem.Params().Set(name='stem', filters=filters, for_small_images=for_small_images, **batch_norm)
    blocks = [
        ResNetBlock.Params().Set(
            name=f'group_{group}_block_{block}', filters=filters * 2**group, strides=2 if group and not block else 1,
            bottleneck=bottleneck, **batch_norm)
        for group, num_blocks in enumerate(blocks_of_groups) for block in range(num_blocks)]
    return [stem, *blocks, ResNetHead.Params().Set(name='head', num_classes=num_classes)]
