"""The operations inside an AmoebaNet cell."""

from typing import Any

import keras
import tensorflow as tf

from lingpipe.layers import base_layer

_POOLINGS = {
    'avg_pool_3x3': (keras.layers.AveragePooling2D, 3),
    'max_pool_3x3': (keras.layers.MaxPooling2D, 3),
    'max_pool_2x2': (keras.layers.MaxPooling2D, 2),
}
_SEPARABLE_KERNEL_SIZES = {'separable_3x3_2': 3, 'separable_5x5_2': 5}


class DropPath(keras.layers.Layer):
    """A layer that draws random factors. They set the output of a path to zero for some examples.

    The other paths then learn to work without this path. The output for an example is kept with probability
    `keep_prob`, and divided by `keep_prob`. The expected value does not change (FractalNet, arXiv 1605.07648,
    'Regularization via drop-path'). Outside training, nothing is dropped; see `is_active`.

    Args:
        final_keep_prob: final probability, in (0, 1], of keeping a path.
        num_training_steps: steps after which `keep_prob` is `final_keep_prob`; None or 0: from the start.
    """

    def __init__(self, final_keep_prob: float, num_training_steps: int | None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._final_keep_prob = final_keep_prob
        self._num_training_steps = num_training_steps

    def build(self, input_shape: Any) -> None:
        if self._final_keep_prob < 1:
            self.seed_generator = keras.random.SeedGenerator(name='seed_generator')

    def is_active(self, training: bool | None) -> bool:
        """Return whether a call with this `training` argument drops paths."""
        return bool(training) and self._final_keep_prob < 1

    def keep_prob(self) -> float | tf.Tensor:
        """Return the probability of keeping a path at the current step t, or `final_keep_prob` if t is unknown.

        keep(t) = 1 - min(1, t / num_training_steps) (1 - final_keep_prob). This is the 'ScheduledDropPath' of NASNet
        (arXiv 1707.07012, appendix A.5).
        """
        step = base_layer.current_training_step()
        if not self._num_training_steps or step is None:
            return self._final_keep_prob
        progress = keras.ops.minimum(1.0, keras.ops.cast(step, 'float32') / self._num_training_steps)
        return 1.0 - progress * (1.0 - self._final_keep_prob)

    def draw_scales(self, inputs: tf.Tensor, num_paths: int) -> list[tf.Tensor]:
        """Draw random factors for several paths.

        Args:
            inputs: tensor `[batch, ...]` with the rank and the dtype of the paths.

        Returns:
            A tensor `[batch, 1, ...]` for each path, with the values 0 and 1 / keep_prob.
        """
        keep_prob = self.keep_prob()
        # One draw for all paths keeps the graph of a cell small.
        shape = (num_paths, keras.ops.shape(inputs)[0]) + (1,) * (len(inputs.shape) - 1)
        kept = keras.random.uniform(shape, dtype='float32', seed=self.seed_generator) < keep_prob
        scales = keras.ops.cast(keras.ops.cast(kept, 'float32') / keep_prob, inputs.dtype)
        return keras.ops.unstack(scales, num_paths)


def strided_shape(shape: Any, strides: int, filters: int) -> tuple[int | None, int, int, int]:
    """Return the output shape of a layer with 'same' padding. `shape` is `[batch, height, width, channels]`."""
    batch, height, width, _ = shape
    return batch, -(-height // strides), -(-width // strides), filters


class AmoebaNetLayer(base_layer.BaseLayer):
    """The base class of AmoebaNet layers."""

    @classmethod
    def Params(cls) -> base_layer.LayerParams:
        p = super().Params()
        p.Define('batch_norm_momentum', 0.9997, 'Momentum, in [0, 1), of the moving averages of batch norm.')
        return p

    def _convolution(self, name, filters, kernel_size, strides=1, padding='same'):
        return keras.layers.Conv2D(
            filters, kernel_size, strides, padding, use_bias=False, kernel_initializer=kernel_initializer(),
            name=name, dtype=self.dtype_policy)

    def _separable_convolution(self, name, filters, kernel_size, strides):
        return keras.layers.SeparableConv2D(
            filters, kernel_size, strides, 'same', use_bias=False, depthwise_initializer=kernel_initializer(),
            pointwise_initializer=kernel_initializer(), name=name, dtype=self.dtype_policy)

    def _batch_norm(self, name):
        return keras.layers.BatchNormalization(
            momentum=self.params.batch_norm_momentum, epsilon=1e-3, name=name, dtype=self.dtype_policy)

    def _build_normalized(self, convolutions, shape):
        """Build a chain of convolutions, each followed by a batch norm."""
        pairs = [(convolution, self._batch_norm(f'{convolution.name}_batch_norm')) for convolution in convolutions]
        for convolution, batch_norm in pairs:
            convolution.build(shape)
            shape = convolution.compute_output_shape(shape)
            batch_norm.build(shape)
        return pairs


def kernel_initializer() -> keras.initializers.Initializer:
    """Return a new fan-out initializer with scale 2, as in the released AmoebaNet."""
    return keras.initializers.VarianceScaling(scale=2.0, mode='fan_out', distribution='truncated_normal')


class Operation(AmoebaNetLayer):
    """One operation of a cell, applied to one state.

    In this table, a convolution stands for ReLU -> convolution -> batch norm, with 'same' padding:

        1x1              1x1
        3x3              1x1 to filters/4 -> 3x3 -> 1x1 back to filters
        1x7_7x1          1x1 to filters/4 -> 1x7 -> 7x1 -> 1x1 back to filters
        separable_kxk_2  two separable convolutions kxk
        avg_pool_3x3, max_pool_3x3, max_pool_2x2
                         pooling, then a 1x1 without ReLU if the channels differ
        none             nothing, or a 1x1 if the shape changes

    An average excludes the padding. With fewer than four filters, 3x3 and 1x7_7x1 have no 1x1.
    """

    @classmethod
    def Params(cls) -> base_layer.LayerParams:
        p = super().Params()
        p.Define('operation', 'none', 'Name of the operation, as listed above.')
        p.Define('filters', None, 'Number of output channels.')
        p.Define('strides', 1, 'Strides in both directions.')
        return p

    def build(self, input_shape: Any) -> None:
        self.pooling = self._make_pooling()
        shape = input_shape if self.pooling is None else self.pooling.compute_output_shape(input_shape)
        self.convolutions = self._build_normalized(self._make_convolutions(input_shape[-1]), shape)

    def _make_pooling(self):
        p = self.params
        if p.operation not in _POOLINGS:
            return None
        pooling_class, pool_size = _POOLINGS[p.operation]
        return pooling_class(pool_size, p.strides, 'same', name='pooling', dtype=self.dtype_policy)

    def _make_convolutions(self, input_channels):
        p = self.params
        if p.operation in ('1x1', 'none'):
            is_identity = p.operation == 'none' and p.strides == 1 and input_channels == p.filters
            return [] if is_identity else [self._convolution('conv_1x1', p.filters, 1, p.strides)]
        if p.operation in _POOLINGS:
            return [] if input_channels == p.filters else [self._convolution('projection', p.filters, 1)]
        if p.operation in _SEPARABLE_KERNEL_SIZES:
            kernel_size = _SEPARABLE_KERNEL_SIZES[p.operation]
            return [self._separable_convolution('separable_0', p.filters, kernel_size, p.strides),
                    self._separable_convolution('separable_1', p.filters, kernel_size, 1)]
        return self._make_bottleneck()

    def _make_bottleneck(self):
        p = self.params
        filters = p.filters // 4 or p.filters
        if p.operation == '3x3':
            inner = [self._convolution('conv_3x3', filters, 3, p.strides)]
        else:
            inner = [self._convolution('conv_1x7', filters, (1, 7), (1, p.strides)),
                     self._convolution('conv_7x1', filters, (7, 1), (p.strides, 1))]
        if p.filters < 4:
            return inner
        return [self._convolution('reduce', filters, 1), *inner, self._convolution('expand', p.filters, 1)]

    def call(self, inputs: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """Map `[batch, height, width, channels]` to `[batch, height / strides, width / strides, filters]`."""
        x = inputs if self.pooling is None else self.pooling(inputs)
        for convolution, batch_norm in self.convolutions:
            if self.pooling is None:
                x = keras.ops.relu(x)
            x = batch_norm(convolution(x), training=training)
        return x

    def compute_output_shape(self, input_shape: Any) -> tuple:
        return strided_shape(input_shape, self.params.strides, self.params.filters)


class FactorizedReduction(AmoebaNetLayer):
    """A layer that halves height and width.

        [ReLU] -+- rows and columns 0, 2, 4, ... -> 1x1 -+- concatenate -> batch norm
                +- rows and columns 1, 3, 5, ... -> 1x1 -+

    An odd height or width is padded with zeros. The layer comes from the NASNet search space (arXiv 1707.07012), which
    AmoebaNet shares.
    """

    @classmethod
    def Params(cls) -> base_layer.LayerParams:
        p = super().Params()
        p.Define('filters', None, 'Number of output channels.')
        p.Define('relu', False, 'Whether a ReLU comes first.')
        return p

    def build(self, input_shape: Any) -> None:
        filters = self.params.filters
        self.even_convolution = self._convolution('even', filters // 2, 1, strides=2)
        self.odd_convolution = self._convolution('odd', filters - filters // 2, 1, strides=2)
        self.batch_norm = self._batch_norm('batch_norm')
        self.even_convolution.build(input_shape)
        self.odd_convolution.build(input_shape)
        self.batch_norm.build(self.compute_output_shape(input_shape))

    def call(self, inputs: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """Map `[batch, height, width, channels]` to `[batch, height / 2, width / 2, filters]`, rounded up."""
        x = keras.ops.relu(inputs) if self.params.relu else inputs
        halves = [self.even_convolution(x), self.odd_convolution(_without_first_pixels(_pad_to_even(x)))]
        return self.batch_norm(keras.ops.concatenate(halves, axis=-1), training=training)

    def compute_output_shape(self, input_shape: Any) -> tuple:
        return strided_shape(input_shape, 2, self.params.filters)


def _pad_to_even(x):
    _, height, width, _ = x.shape
    if height % 2 == 0 and width % 2 == 0:
        return x
    return keras.ops.pad(x, ((0, 0), (0, height % 2), (0, width % 2), (0, 0)))


def _without_first_pixels(x):
    """Drop the first row and the first column."""
    _, height, width, channels = x.shape
    # A strided slice, `x[:, 1:, 1:]`, would be far slower in both passes.
    return keras.ops.slice(x, (0, 1, 1, 0), (keras.ops.shape(x)[0], height - 1, width - 1, channels))
