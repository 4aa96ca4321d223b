"""The task of language models, which predict every next token."""

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from lingpipe import hyperparams
from lingpipe.models import base_task, prompted_texts
from lingpipe.models.sampling import Sampling


def token_metrics(labels: tf.Tensor, weights: tf.Tensor, logits: tf.Tensor, label_smoothing: float) -> tuple:
    """Compare logits `[batch, length, vocab_size]` with labels. Labels and weights are `[batch, length]`.

    Returns:
        Tuple (loss, accuracy, nats). Loss and accuracy are pairs (mean, weight). The loss is the smoothed cross-entropy
        in nats per token (arXiv 1512.00567, section 7). `nats` is the cross-entropy `[batch, length]`, not smoothed.
    """
    logits, total = tf.cast(logits, tf.float32), tf.reduce_sum(weights)
    smoothed = nats = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    if label_smoothing:
        uniform = tf.reduce_logsumexp(logits, -1) - tf.reduce_mean(logits, -1)
        smoothed = (1 - label_smoothing) * nats + label_smoothing * uniform
    correct = tf.cast(tf.argmax(logits, -1, labels.dtype) == labels, tf.float32)
    return weighted_mean(smoothed, weights, total), weighted_mean(correct, weights, total), nats


def weighted_mean(values: tf.Tensor, weights: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return (mean, `total`). The mean is sum(values * weights) / `total`, or 0 if `total` is 0."""
    return tf.math.divide_no_nan(tf.reduce_sum(values * weights), total), total


class LanguageModel(base_task.BaseTask):
    """A task that predicts each next token of a sequence. The body ends in logits `[batch, length, vocab_size]`.

    The body may also read a source, as the sequence-to-sequence models of KerasHub do.
    """

    @classmethod
    def Params(cls) -> hyperparams.InstantiableParams:
        p = super().Params()
        p.eval.Set(best_metric='bits_per_byte')
        p.Define('label_smoothing', 0.0, 'Probability spread evenly over all tokens (arXiv 1512.00567, section 7).')
        p.Define('sample_prompt', '', 'Start of the text that the model writes with every evaluation during training, '
                                      'or the source that it reads.')
        p.Define('sample_length', 100, 'Largest number of tokens to write; 0: none.')
        return p

    def __init__(self, params: hyperparams.InstantiableParams) -> None:
        super().__init__(params)
        self._sampler: Any = None

    def loss(self, targets: tuple, outputs: Any) -> dict[str, Any]:
        """Return the metrics 'loss', 'bits_per_byte' and 'accuracy' of one micro-batch.

        'loss' is the smoothed cross-entropy in nats per token. 'bits_per_byte' is the cross-entropy without smoothing.

        Args:
            targets: tuple (labels, weights, numbers of bytes), each `[batch, length]`; tokens of weight 0 do not count.
            outputs: logits `[batch, length, vocab_size]`.
        """
        labels, weights, num_bytes = targets
        loss, accuracy, nats = token_metrics(labels, weights, outputs, self.params.label_smoothing)
        bits = weighted_mean(nats / math.log(2), weights, tf.reduce_sum(weights * num_bytes))
        return {'loss': loss, 'bits_per_byte': bits, 'accuracy': accuracy}

    def check_input(self, training_input: Any) -> None:
        """Raise ValueError if the labels or the tokenizer do not fit the body's logits."""
        self.require_labels(training_input, 3)
        super().check_input(training_input)
        vocab_size, num_logits = training_input.tokenizer.vocab_size, self.body.output_of_one_example.shape[-1]
        if vocab_size > num_logits:
            raise ValueError(
                f'input.tokenizer has vocab_size={vocab_size}, but the body ends in {num_logits} logits, so that '
                'larger tokens would be lost. Use the tokenizer that the model was made for, or a body of '
                f'{vocab_size} logits.')

    def sample(self, training_input: Any, read: Callable) -> str | None:
        """Return a text that the model writes, or None if the Params describe no sample."""
        p = self.params
        if not p.sample_length or not p.sample_prompt and prompted_texts.reads_sources(training_input.input_spec):
            return None
        self._sampler = self._sampler or prompted_texts.text_writer(
            self.body, training_input.tokenizer, training_input.input_spec, Sampling(), read)  # always the same seed
        return self._sampler.shown(p.sample_prompt, self._sampler.texts([p.sample_prompt], p.sample_length)[0])
