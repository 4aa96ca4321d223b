"""Image classification with softmax cross-entropy."""

from typing import Any

import keras
import tensorflow as tf
from absl import logging

from lingpipe import hyperparams
from lingpipe.models import base_task


class ImageClassifier(base_task.BaseTask):
    """A task that classifies images, texts or tokens. The body ends in logits `[batch, ..., classes]`.

    In training, the body may return (logits, auxiliary logits). `auxiliary_loss_weight` weighs the auxiliary loss.
    """

    @classmethod
    def Params(cls) -> hyperparams.InstantiableParams:
        p = super().Params()
        p.eval.Set(best_metric='accuracy')
        p.Define('label_smoothing', 0.0, 'Probability spread evenly over all classes (arXiv 1512.00567, section 7).')
        p.Define('auxiliary_loss_weight', 0.4, 'Weight of the loss of the auxiliary head, where there is one.')
        return p

    def check_input(self, training_input: Any) -> None:
        """Raise ValueError if labels, tokens or the number of classes do not fit the body."""
        super().check_input(training_input)
        self.require_labels(training_input, 2)
        self._warn_of_softmax()
        num_logits = tf.nest.flatten(self.body.output_of_one_example)[0].shape[-1]
        if training_input.num_classes > num_logits:
            raise ValueError(f'input has {training_input.num_classes} classes, but the body ends in {num_logits} '
                             f'logits. Give the head num_classes={training_input.num_classes}.')

    def _warn_of_softmax(self):
        """Warn if the last layer ends in softmax."""
        last, outputs = self.body.stack[-1], getattr(self.body.model, 'outputs', None)
        for layer in [output._keras_history.operation for output in outputs] if outputs else [last]:
            activation = getattr(layer, 'activation', None)
            if isinstance(layer, keras.layers.Softmax) or activation is keras.activations.softmax:
                logging.warning('Layer %r ends in softmax, but %s takes logits, and applies softmax again: training '
                                'would hardly learn. Leave it out.', layer.name, type(self).__name__)

    def loss(self, targets: Any, outputs: Any) -> dict[str, tuple]:
        """Return the metrics 'loss' and 'accuracy'; see `BaseTask.loss`."""
        labels, weights = targets
        logits, *auxiliary = tf.nest.flatten(outputs)
        total = tf.reduce_sum(weights)
        losses = self._cross_entropy(labels, logits)
        for auxiliary_logits in auxiliary:
            losses += self.params.auxiliary_loss_weight * self._cross_entropy(labels, auxiliary_logits)
        correct = tf.cast(tf.argmax(logits, -1, labels.dtype) == labels, tf.float32)
        return {
            'loss': (tf.math.divide_no_nan(tf.reduce_sum(losses * weights), total), total),
            'accuracy': (tf.math.divide_no_nan(tf.reduce_sum(correct * weights), total), total)}

    def metric_arguments(self, targets: Any, outputs: Any) -> tuple:
        """Return labels, the main logits and weights; see `BaseTask.metric_arguments`."""
        return super().metric_arguments(targets, tf.nest.flatten(outputs)[0])

    def _cross_entropy(self, labels, logits):
        logits = tf.cast(logits, tf.float32)
        smoothing, num_classes = self.params.label_smoothing, logits.shape[-1]
        probabilities = tf.one_hot(
            labels, num_classes, 1.0 - smoothing + smoothing / num_classes, smoothing / num_classes)
        return tf.nn.softmax_cross_entropy_with_logits(probabilities, logits)
