"""Generated examples of a linear function with noise. The true weights are known."""

import numpy as np
import tensorflow as tf

from lingpipe import hyperparams
from lingpipe.input import base_input

_SPLITS = ('train', 'test')


class LinearInput(base_input.MemoryInput):
    """Rows of `targets = features @ weights + bias + noise`. Features and noise are normally distributed.

    Weights, features and noise are always the same. The order of the rows depends on the seed and the epoch.
    """

    @classmethod
    def Params(cls) -> hyperparams.InstantiableParams:
        p = super().Params().Set(name='linear_input', batch_size=50)
        p.Delete('dataset')
        p.Delete('data_dir')
        p.Define('num_features', 8, 'Numbers in an example.')
        p.Define('num_outputs', 1, 'Numbers to predict from them.')
        p.Define('num_examples', 1000, 'Examples in the split.')
        p.Define('noise', 0.1, 'Standard deviation of what no weights can explain.')
        return p

    @staticmethod
    def InputSpec(params: hyperparams.Params) -> tf.TensorSpec:
        """Return the `tf.TensorSpec` `[batch_size, num_features]` of the features."""
        return tf.TensorSpec([params.batch_size, params.num_features], tf.float32)

    @staticmethod
    def TargetSpec(params: hyperparams.Params) -> tuple[tf.TensorSpec, tf.TensorSpec]:
        """Return the `tf.TensorSpec`s of targets `[batch_size, num_outputs]` and example weights `[batch_size]`."""
        targets = tf.TensorSpec([params.batch_size, params.num_outputs], tf.float32)
        return targets, tf.TensorSpec([params.batch_size], tf.float32)

    def __init__(self, params: hyperparams.Params) -> None:
        super().__init__(params)
        p = self.params
        parts = 0, 1 + _SPLITS.index(p.split)
        of_weights, of_examples = (np.random.default_rng([0, part]) for part in parts)
        self.true_weights = of_weights.normal(size=[p.num_features, p.num_outputs]).astype(np.float32)
        self.true_bias = of_weights.normal(size=[p.num_outputs]).astype(np.float32)
        features = of_examples.normal(size=[p.num_examples, p.num_features]).astype(np.float32)
        noise = p.noise * of_examples.normal(size=[p.num_examples, p.num_outputs])
        targets = (features @ self.true_weights + self.true_bias + noise).astype(np.float32)
        with tf.device('CPU:0'):
            self._columns = tf.constant(features), tf.constant(targets)

    def _batch(self, features, targets):
        return features, targets, tf.ones([tf.shape(features)[0]])

    def _check_params(self):
        super()._check_params()
        self._check_at_least(num_features=1, num_outputs=1, num_examples=1)
        if self.params.split not in _SPLITS:
            raise ValueError(f'split: {self.params.split!r} is not a split of this input. Choose one of {_SPLITS}.')
