"""Language models: predicting every next token."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from lingpipe import hyperparams
from lingpipe.models import base_task, text_writers
from lingpipe.models.sampling import Sampling


def smoothed_cross_entropy(nats: tf.Tensor, logits: tf.Tensor, label_smoothing: float) -> tf.Tensor:
    """Adds a share of the cross-entropy of the uniform distribution (arXiv 1512.00567, section 7).

    Args:
        nats: plain cross-entropies `[batch, length]`.
        logits: `[batch, length, vocab_size]`.
        label_smoothing: probability spread evenly over all tokens.

    Returns:
        Cross-entropies `[batch, length]`.
    """
    if not label_smoothing:
        return nats
    uniform = tf.reduce_logsumexp(logits, -1) - tf.reduce_mean(logits, -1)
    return (1 - label_smoothing) * nats + label_smoothing * uniform


def weighted_mean(values: Any, weights: Any, total: tf.Tensor) -> tf.Tensor:
    """Returns the sum of values times weights over `total`; 0 if that is 0."""
    return tf.math.divide_no_nan(tf.reduce_sum(values * weights), total)


class NGramModel:
    """Counts of up to n tokens in a row, smoothed by interpolated Kneser-Ney with one discount per order.

    For a history h and its shorter form h' (Chen and Goodman 1999, "An empirical study of smoothing techniques for
    language modeling", section 2.7)::

        p(w | h) = max(c(h w) - D, 0) / c(h) + D N(h) / c(h) p(w | h')    D = (n1 + 1/2) / (n1 + 2 n2 + 1)

    For the longest histories c counts occurrences, for shorter ones the different tokens before them. N(h) is the
    number of different tokens after h; n1 and n2 are how many c are 1 and 2 (the 1/2 leaves some probability for unseen
    tokens if n1 is 0). The shortest history has equal probabilities.

    Args:
        tokens: integer array `[length]` to learn from.
        order: n, the longest run that is counted.
        vocab_size: number of different tokens.
    """

    def __init__(self, tokens: np.ndarray, order: int, vocab_size: int) -> None:
        if vocab_size ** order >= 2 ** 63:
            raise ValueError(f'order={order} is too large for runs of tokens below {vocab_size}. Choose a smaller '
                             'order.')
        self._vocab_size = vocab_size
        runs = [_counts(self._codes(tokens, length)) for length in range(1, order + 1)]
        self._levels = [
            _Level(
                codes, counts if length == order else self._continuations(runs[length][0], length, codes), vocab_size)
            for length, (codes, counts) in enumerate(runs, 1)]

    def bits(self, tokens: np.ndarray) -> np.ndarray:
        """Returns -log2 p of every token after those before it, float64 `[length]`."""
        probabilities = np.full(len(tokens), 1 / self._vocab_size)
        for length, level in enumerate(self._levels, 1):
            longer = level.interpolate(self._codes(tokens, length), probabilities[length - 1:])
            probabilities = np.concatenate([probabilities[:length - 1], longer])
        return -np.log2(probabilities)

    def _codes(self, tokens, length):
        """Returns one number for each run of `length` tokens, by the position of its last token."""
        windows = np.lib.stride_tricks.sliding_window_view(np.asarray(tokens, np.int64), length)
        return windows @ (np.int64(self._vocab_size) ** np.arange(length - 1, -1, -1))

    def _continuations(self, longer_codes, length, codes):
        """Returns how many different tokens precede each run; the start of the text counts as one token."""
        found, counts = _counts(longer_codes % self._vocab_size ** length)
        return np.maximum(1, _look_up(found, counts, codes))


class _Level:
    """The runs of one length.

    Args:
        codes: array `[count]`, ascending, of all runs.
        counts: array `[count]`, c.
        vocab_size: number of different tokens.
    """

    def __init__(self, codes, counts, vocab_size):
        self._codes, self._counts, self._vocab_size = codes, counts, vocab_size
        ones, twos = (counts == 1).sum(), (counts == 2).sum()
        self._discount = (ones + 0.5) / (ones + 2 * twos + 1)
        self._histories, start = np.unique(codes // vocab_size, return_index=True)
        self._totals = np.add.reduceat(counts, start)
        self._followers = np.diff(start, append=len(codes))

    def interpolate(self, codes, shorter):
        """Returns p of the last token of each run; `shorter` holds p from the shorter history."""
        histories = codes // self._vocab_size
        totals = _look_up(self._histories, self._totals, histories)
        followers = _look_up(self._histories, self._followers, histories)
        counts = _look_up(self._codes, self._counts, codes)
        seen = np.maximum(counts - self._discount, 0) + self._discount * followers * shorter
        return np.where(totals > 0, seen / np.maximum(totals, 1), shorter)


def _counts(codes):
    return np.unique(codes, return_counts=True)


def _look_up(codes, values, wanted):
    """Returns the values of the wanted codes, 0 if there is none; `codes` ascend."""
    places = np.minimum(np.searchsorted(codes, wanted), len(codes) - 1)
    return np.where(codes[places] == wanted, values[places], 0)


def length_of(input_spec: Any) -> int:
    """Returns the number of tokens of a row of `tf.TensorSpec` `[batch, length]`, or of a dictionary of them."""
    return tf.nest.flatten(input_spec)[0].shape[1]


class LanguageModel(base_task.BaseTask):
    """Predicts each token of a sequence by a body that ends in logits `[batch, length, vocab_size]`.

    The body may also read a source, as the sequence-to-sequence models of KerasHub do.
    """

    @classmethod
    def Params(cls) -> hyperparams.InstantiableParams:
        p = super().Params()
        p.eval.Set(best_metric='bits_per_byte')
        p.Define('label_smoothing', 0.0, 'Probability spread evenly over all tokens (arXiv 1512.00567, section 7).')
        p.Define('n_gram_order', 0, 'n of the n-gram model that is shown for comparison, for texts that fit into '
                                    'memory; 0: '
                 'none.')
        p.Define('sample_prompt', '', 'Start of the text that the model writes with every evaluation during training, '
                                      'or the source that it reads.')
        p.Define('sample_length', 100, 'Largest number of tokens to write; 0: none.')
        return p

    def __init__(self, params: hyperparams.InstantiableParams) -> None:
        super().__init__(params)
        self._sampler: Any = None

    def loss(self, targets: tuple, outputs: Any) -> dict[str, Any]:
        """Computes the metrics of one micro-batch.

        Args:
            targets: tuple (labels, weights, numbers of bytes), each `[batch, length]`; tokens of weight 0 do not count.
            outputs: logits `[batch, length, vocab_size]`.

        Returns:
            Dictionary from name to (mean, weight): 'loss', the smoothed cross-entropy in nats per token;
            'bits_per_byte', the plain cross-entropy over all bytes of the tokens; 'accuracy' of the next token.
        """
        labels, weights, num_bytes = targets
        logits = tf.cast(outputs, tf.float32)
        total, total_bytes = tf.reduce_sum(weights), tf.reduce_sum(weights * num_bytes)
        nats = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        smoothed, mean = smoothed_cross_entropy(nats, logits, self.params.label_smoothing), weighted_mean
        correct = tf.cast(tf.argmax(logits, -1, labels.dtype) == labels, tf.float32)
        return {
            'loss': (mean(smoothed, weights, total), total),
            'bits_per_byte': (mean(nats / math.log(2), weights, total_bytes), total_bytes),
            'accuracy': (mean(correct, weights, total), total)}

    def check_input(self, training_input: Any) -> None:
        """Raises ValueError if the body does not predict the labels, or does not know a token."""
        self.require_labels(training_input, 3)
        super().check_input(training_input)
        vocab_size, num_logits = training_input.tokenizer.vocab_size, self.body.output_of_one_example.shape[-1]
        if vocab_size > num_logits:
            raise ValueError(
                f'input.tokenizer has vocab_size={vocab_size}, but the body ends in {num_logits} logits, so that '
                'larger tokens would be lost. Use the tokenizer that the model was made for, or a body of '
                f'{vocab_size} logits.')

    def sample(self, training_input: Any, read: Callable) -> str | None:
        """Returns a text that the model wrote, always with the same random numbers, so that texts can be compared."""
        p = self.params
        if not p.sample_length or not p.sample_prompt and text_writers.reads_sources(training_input.input_spec):
            return None
        self._sampler = self._sampler or text_writers.text_writer(
            self.body, training_input.tokenizer, training_input.input_spec, Sampling(), read)
        return self._sampler.shown(p.sample_prompt, self._sampler.texts([p.sample_prompt], p.sample_length)[0])

    def baselines(self, train_input_params: Any, evaluation_input: Any) -> dict[str, float]:
        """Returns the bits per byte of an n-gram model of the same training text, if `n_gram_order` is set."""
        order, tokenizer = self.params.n_gram_order, evaluation_input.tokenizer
        if not order:
            return {}
        training = train_input_params.Instantiate()
        model = NGramModel(training.tokens, order, tokenizer.vocab_size)
        tokens = evaluation_input.tokens
        bits = model.bits(np.concatenate([[tokenizer.end_id], tokens]))[1:]
        return {f'{order}-gram model bits_per_byte': bits.sum() / tokenizer.num_bytes(tokens).numpy().sum()}
