"""Examples of a linear function with noise, generated from a seed: data whose true weights are known."""


import numpy as np
import tensorflow as tf

from lingpipe import hyperparams
from lingpipe.input import base_input, batch_share, row_order

_SPLITS = ('train', 'test')


class LinearInput(base_input.BaseInput):
    """Rows of `targets = features @ weights + bias + noise`; features and noise are normally distributed.

    Weights, features and noise depend only on `data_seed`, the order of an epoch on (seed, epoch).

    Attributes:
        num_examples: number of examples of the split.
        true_weights: float32 array `[num_features, num_outputs]`.
        true_bias: float32 array `[num_outputs]`.
        input_spec: `tf.TensorSpec` `[batch_size, num_features]` of the features.
    """

    @classmethod
    def Params(cls) -> hyperparams.InstantiableParams:
        """Returns the InstantiableParams of this input."""
        p = super().Params().Set(name='linear_input', batch_size=50)
        p.Delete('dataset')
        p.Delete('data_dir')
        p.Define('num_features', 8, 'Numbers in an example.')
        p.Define('num_outputs', 1, 'Numbers to predict from them.')
        p.Define('num_examples', 1000, 'Examples in the split.')
        p.Define('noise', 0.1, 'Standard deviation of what no weights can explain.')
        p.Define('data_seed', 0, 'Integer from 0 that the true weights and all examples depend on.')
        return p

    @staticmethod
    def InputSpec(params: hyperparams.Params) -> tf.TensorSpec:
        """Returns the `tf.TensorSpec` `[batch_size, num_features]` of the features."""
        return tf.TensorSpec([params.batch_size, params.num_features], tf.float32)

    @staticmethod
    def TargetSpec(params: hyperparams.Params) -> tuple[tf.TensorSpec, tf.TensorSpec]:
        """Returns the pair of the `tf.TensorSpec` of targets `[batch_size, num_outputs]` and weights `[batch_size]`."""
        targets = tf.TensorSpec([params.batch_size, params.num_outputs], tf.float32)
        return targets, tf.TensorSpec([params.batch_size], tf.float32)

    def __init__(self, params: hyperparams.Params) -> None:
        super().__init__(params)
        p = self.params
        self.num_examples = p.num_examples
        self.input_spec = self.InputSpec(p)
        parts = 0, 1 + _SPLITS.index(p.split)
        of_weights, of_examples = (np.random.default_rng([p.data_seed, part]) for part in parts)
        self.true_weights = of_weights.normal(size=[p.num_features, p.num_outputs]).astype(np.float32)
        self.true_bias = of_weights.normal(size=[p.num_outputs]).astype(np.float32)
        self._features = of_examples.normal(size=[p.num_examples, p.num_features]).astype(np.float32)
        noise = p.noise * of_examples.normal(size=[p.num_examples, p.num_outputs])
        self._targets = (self._features @ self.true_weights + self.true_bias + noise).astype(np.float32)

    @base_input.without_autograph
    def training_dataset(self, position: int = 0, share: batch_share.Share = batch_share.WHOLE) -> tf.data.Dataset:
        """Returns endless batches from example number `position` on; they continue across the ends of epochs.

        Args:
            position: number of examples seen before, over all epochs.
            share: which rows of each batch are made.

        Returns:
            `tf.data.Dataset` of (features float32 [batch, num_features], targets float32 [batch, num_outputs], weights
            float32 [batch], all one).

        Raises:
            ValueError: the position is negative, or the shares do not divide the batch.
        """
        self._check_position(position)
        p = self.params
        indices = row_order.endless(self.num_examples, position, p.seed, p.shuffle)
        batches = share.of(indices, p.batch_size).batch(share.size(p.batch_size), drop_remainder=True)
        return self._finish(batches.map(self._rows))

    @base_input.without_autograph
    def evaluation_dataset(self) -> tf.data.Dataset:
        """Returns every example once; the last batch is padded with examples of weight 0."""
        indices = row_order.padded(self.num_examples, self.params.batch_size)
        return self._finish(indices.map(self._rows))

    def _rows(self, indices):
        """Returns the rows of a batch; indices beyond the last example are padding of weight 0."""
        known = tf.minimum(indices, self.num_examples - 1)
        weights = tf.cast(indices < self.num_examples, tf.float32)
        return tf.gather(self._features, known), tf.gather(self._targets, known), weights

    def _check_params(self):
        super()._check_params()
        self._check_at_least(num_features=1, num_outputs=1, num_examples=1, data_seed=0)
        if self.params.split not in _SPLITS:
            raise ValueError(f'split: {self.params.split!r} is not a split of this input. Choose one of {_SPLITS}.')
