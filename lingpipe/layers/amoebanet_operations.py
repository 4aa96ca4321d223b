"""The operations inside an AmoebaNet cell. Each returns a tensor with the cell's number of channels."""

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
    """Dropout of whole paths: for some examples, the output of a path becomes zero.

    So the other paths learn to work without that path. Each example is kept with probability `keep_prob`, and then
    divided by `keep_prob`, so the expected value stays (FractalNet, arXiv 1605.07648, 'Regularization via drop-path').
    Outside training, nothing is dropped.

    Args:
        final_keep_prob: final probability, in (0, 1], of keeping a path.
        num_training_steps: steps over which `keep_prob` falls from 1 to `final_keep_prob`; None or 0: at once.
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
        """Return the probability of keeping a path at the current step, a float or a scalar tensor.

        keep(t) = 1 - min(1, t / num_training_steps) (1 - final), the 'ScheduledDropPath' of NASNet (arXiv 1707.07012,
        appendix A.5). The result is `final` if no step t is known; see `base_layer.training_step`.
        """
        step = base_layer.current_training_step()
        if not self._num_training_steps or step is None:
            return self._final_keep_prob
        progress = keras.ops.minimum(1.0, keras.ops.cast(step, 'float32') / self._num_training_steps)
        return 1.0 - progress * (1.0 - self._final_keep_prob)

    def draw_scales(self, inputs: tf.Tensor, num_paths: int) -> list[tf.Tensor]:
        """Draw the factors of several independent paths.

        Args:
            inputs: `[batch, ...]`, a tensor of the batch size, rank and dtype of the paths.

        Returns:
            A list of `num_paths` tensors `[batch, 1, ...]` to multiply the paths by: 0 or 1 / keep_prob.
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
    """The base class of AmoebaNet layers. It has the batch norm momentum, and creates convolutions."""

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
        """Build a chain of convolutions on an input of `shape`. Return (convolution, batch norm) pairs."""
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

    A convolution is a chain of [ReLU -> convolution -> batch norm] with 'same' padding. Strides apply once:

        1x1              1x1
        3x3              1x1 to filters/4 -> 3x3 -> 1x1 back to filters
        1x7_7x1          1x1 to filters/4 -> 1x7 -> 7x1 -> 1x1 back to filters
        separable_kxk_2  two separable convolutions kxk
        avg_pool_3x3, max_pool_3x3, max_pool_2x2
                         pooling; then, only if the channels differ, 1x1 convolution and batch norm without ReLU
        none             nothing; a 1x1 if strides or channels need one

    An average excludes the padding. With fewer than four filters there is no bottleneck.
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
    """Halves height and width. Half of the channels come from even rows and columns, the other half from odd.

        [ReLU] -+- rows and columns 0, 2, 4, ... -> 1x1 -+- concatenate -> batch norm
                +- rows and columns 1, 3, 5, ... -> 1x1 -+

    A missing last row or column is filled with zeros. If the number of filters is odd, the second half is larger.
    The layer comes from the NASNet search space (arXiv 1707.07012), which AmoebaNet shares.
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
    """Drop the first row and column."""
    _, height, width, channels = x.shape
    # A strided slice, `x[:, 1:, 1:]`, would be far slower in both passes.
    return keras.ops.slice(x, (0, 1, 1, 0), (keras.ops.shape(x)[0], height - 1, width - 1, channels))
