"""AmoebaNet B and D for image classification. A pipeline can cut the networks between any two layers."""

from typing import Any

import keras
import tensorflow as tf

from lingpipe import hyperparams
from lingpipe.layers import amoebanet_cell, amoebanet_operations, base_layer

_MIN_NUM_CELLS = 2  # With fewer, both reductions would be at the same place.
_MIN_REDUCTION_SIZE = 8  # The first stem cell has a quarter of these filters, and factorized reduction halves them.
_STEM_FILTERS = 32
_AUXILIARY_FILTERS, _FULL_FILTERS = int(128 * 0.4), int(768 * 0.4)  # of the auxiliary head


class AmoebaNetStem(amoebanet_operations.AmoebaNetLayer):
    """A 3x3 convolution with strides 2 and 'valid' padding, then batch norm. The stem halves height and width."""

    def __init__(self, params: hyperparams.Params, **kwargs: Any) -> None:
        super().__init__(params, **kwargs)
        self.convolution = self._convolution('convolution', _STEM_FILTERS, 3, strides=2, padding='valid')
        self.batch_norm = self._batch_norm('batch_norm')

    def build(self, input_shape: Any) -> None:
        if len(input_shape) != 4 or any(size is None or size < 3 for size in input_shape[1:3]):
            raise ValueError(f'AmoebaNetStem received images of shape {tuple(input_shape)}; it needs '
                             '[batch, height, width, channels] with a known height and width of at least 3. '
                             'Resize the images in the input pipeline.')
        self.convolution.build(input_shape)
        self.batch_norm.build(self.compute_output_shape(input_shape))

    def call(self, inputs: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """Map images `[batch, height, width, channels]` to `[batch, (height - 1) // 2, (width - 1) // 2, filters]`."""
        return self.batch_norm(self.convolution(inputs), training=training)

    def compute_output_shape(self, input_shape: Any) -> tuple:
        return self.convolution.compute_output_shape(input_shape)


class AmoebaNetAuxiliaryHead(amoebanet_operations.AmoebaNetLayer):
    """A second classifier at two thirds of the depth. In training, its loss sends gradients to the lower cells.

        (out, prev) -+------------------------------------------------------------- (out, prev, auxiliary_logits)
                     +- out: ReLU, average pool 5x5 strides 3, 1x1, batch norm, -+
                        ReLU, convolution over the whole map, batch norm,        |
                        ReLU, dense ---------------------------------------------+

    In evaluation, the layer returns its input. Channels are as in the released AmoebaNet. The idea is from Inception
    (arXiv 1409.4842, section 5).
    """

    @classmethod
    def Params(cls) -> base_layer.LayerParams:
        p = super().Params()
        p.Define('num_classes', 1001, 'Number of classes.')
        return p

    def build(self, input_shape: Any) -> None:
        _, height, width, _ = input_shape[0]
        pool_size = (min(5, height), min(5, width))  # a smaller feature map is pooled whole
        self.pooling = keras.layers.AveragePooling2D(pool_size, 3, 'valid', name='pooling', dtype=self.dtype_policy)
        shape = self.pooling.compute_output_shape(input_shape[0])
        self.convolutions = self._build_normalized(
            [self._convolution('projection', _AUXILIARY_FILTERS, 1),
             self._convolution('full_convolution', _FULL_FILTERS, shape[1:3], padding='valid')], shape)
        self.dense = _dense(self, self.params.num_classes)
        self.dense.build((shape[0], _FULL_FILTERS))

    def call(self, inputs: Any, training: bool | None = None) -> tuple:
        """Append `auxiliary_logits` `[batch, num_classes]` to `(out, prev)` in training."""
        if not training:
            return inputs
        x = self.pooling(keras.ops.relu(inputs[0]))
        for convolution, batch_norm in self.convolutions:
            x = keras.ops.relu(batch_norm(convolution(x), training=training))
        return *inputs, base_layer.as_logits(self.dense(keras.ops.squeeze(x, axis=(1, 2))))


class AmoebaNetHead(base_layer.BaseLayer):
    """The classifier on top, with ReLU, global average pool, dropout and a dense layer."""

    @classmethod
    def Params(cls) -> base_layer.LayerParams:
        p = super().Params()
        p.Define('num_classes', 1001, 'Number of classes.')
        p.Define('dropout_rate', 0.5, 'Fraction of the pooled features that dropout sets to zero, in [0, 1).')
        return p

    def __init__(self, params: hyperparams.Params, **kwargs: Any) -> None:
        # Keras would cast the auxiliary logits from float32 to the compute dtype.
        super().__init__(params, autocast=False, **kwargs)
        self.dropout = keras.layers.Dropout(params.dropout_rate, name='dropout', dtype=self.dtype_policy)
        self.dense = _dense(self, params.num_classes)

    def build(self, input_shape: Any) -> None:
        batch, _, _, channels = input_shape[0]
        self.dense.build((batch, channels))

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Map `(out, prev)` to logits `[batch, num_classes]`, and `(out, prev, auxiliary)` to `(logits, auxiliary)`."""
        out, _, *auxiliary_logits = inputs
        features = keras.ops.mean(keras.ops.relu(out), axis=(1, 2))
        logits = base_layer.as_logits(self.dense(self.dropout(features, training=training)))
        return (logits, *auxiliary_logits) if auxiliary_logits else logits


def _dense(layer, units):
    return keras.layers.Dense(units, kernel_initializer=amoebanet_operations.kernel_initializer(), name='dense',
                              dtype=layer.dtype_policy)


def amoebanet_layers(
        genotype: str = 'D', num_cells: int = 18, reduction_size: int = 256, num_classes: int = 1001,
        use_auxiliary_head: bool = True, dropout_rate: float = 0.5, drop_path_final_keep_prob: float = 0.7,
        drop_path_num_steps: int | None = None, batch_norm_momentum: float = 0.9997) -> list[base_layer.LayerParams]:
    """Return the Params of an AmoebaNet's layers, from the image to the logits.

        stem, stem_cell_0, stem_cell_1, cell_0, ..., reduction_0, cell_L/3, ..., auxiliary_head, reduction_1, cell_2L/3,
        ..., head

    AmoebaNet-D (L, D) of GPipe (arXiv 1811.06965) has `num_cells` L and `reduction_size` D. The stem cells have D/4 and
    D/2 filters. Other cells have D filters before reduction_0, 2D from reduction_0 on, and 4D from reduction_1 on.

    Args:
        num_classes: number of classes. The published networks have 1001 classes, of which class 0 is the background.
        use_auxiliary_head: whether to insert the auxiliary head. Training then returns `(logits, auxiliary_logits)`.

    Raises:
        ValueError: `num_cells` or `reduction_size` is too small.
    """
    for name, value, minimum in (
            ('num_cells', num_cells, _MIN_NUM_CELLS), ('reduction_size', reduction_size, _MIN_REDUCTION_SIZE)):
        if value < minimum:
            raise ValueError(f'amoebanet_layers: {name} is {value}; it must be at least {minimum}. Set a larger one.')
    cell = amoebanet_cell.AmoebaNetCell.Params().Set(
        genotype=genotype, drop_path_final_keep_prob=drop_path_final_keep_prob,
        drop_path_num_steps=drop_path_num_steps, batch_norm_momentum=batch_norm_momentum)
    layers = [AmoebaNetStem.Params().Set(name='stem', batch_norm_momentum=batch_norm_momentum)]
    layers += _cells(cell, num_cells, reduction_size)
    if use_auxiliary_head:
        position = [layer.name for layer in layers].index('reduction_1')
        layers.insert(position, AmoebaNetAuxiliaryHead.Params().Set(
            name='auxiliary_head', num_classes=num_classes, batch_norm_momentum=batch_norm_momentum))
    return layers + [AmoebaNetHead.Params().Set(name='head', num_classes=num_classes, dropout_rate=dropout_rate)]


def _cells(cell, num_cells, reduction_size):
    """Return the Params of all cells, which are copies of `cell`."""
    filters = reduction_size
    cells = [cell.Copy().Set(name='stem_cell_0', reduction=True, filters=filters // 4),
             cell.Copy().Set(name='stem_cell_1', reduction=True, filters=filters // 2)]
    reductions = [num_cells // 3, 2 * num_cells // 3]
    for index in range(num_cells):
        if index in reductions:
            filters *= 2
            cells.append(cell.Copy().Set(
                name=f'reduction_{reductions.index(index)}', reduction=True, filters=filters))
        cells.append(cell.Copy().Set(name=f'cell_{index}', filters=filters))
    return cells
