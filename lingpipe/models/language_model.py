"""Language models: predicting every next token."""

import math

import numpy as np
import tensorflow as tf

from lingpipe.models import base_task, generation, n_gram, token_losses


class LanguageModel(base_task.BaseTask):
    """Predicts each token of a sequence by a body that ends in logits `[batch, length, vocab_size]`."""

    @classmethod
    def Params(cls):
        p = super().Params()
        p.eval.Set(best_metric='bits_per_byte')
        p.Define('label_smoothing', 0.0, 'Probability spread evenly over all tokens (arXiv 1512.00567, section 7).')
        p.Define('n_gram_order', 0, 'n of the n-gram model that is shown for comparison, for texts that fit into memory; 0: '
                 'none.')
        p.Define('sample_prompt', '', 'Start of the text that the model writes with every evaluation of a training.')
        p.Define('sample_length', 100, 'Number of tokens that it goes on for at most; 0: it writes none.')
        return p

    def __init__(self, params):
        super().__init__(params)
        self._sampler = None

    def loss(self, targets, outputs):
        """Computes the metrics of one micro-batch.

        Args:
            targets: tuple (labels, weights, numbers of bytes), each `[batch, length]`; tokens of weight 0 do not count.
            outputs: logits `[batch, length, vocab_size]`.

        Returns:
            Dictionary from name to (mean, weight): 'loss', the smoothed cross-entropy in nats a token; 'bits_per_byte', the
            plain one over all bytes that the tokens stand for; 'accuracy' of the next token.
        """
        labels, weights, num_bytes = targets
        logits = tf.cast(outputs, tf.float32)
        total, total_bytes = tf.reduce_sum(weights), tf.reduce_sum(weights * num_bytes)
        nats = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        smoothed, mean = token_losses.smoothed(nats, logits, self.params.label_smoothing), token_losses.weighted_mean
        correct = tf.cast(tf.argmax(logits, -1, labels.dtype) == labels, tf.float32)
        return {
            'loss': (mean(smoothed, weights, total), total),
            'bits_per_byte': (mean(nats / math.log(2), weights, total_bytes), total_bytes),
            'accuracy': (mean(correct, weights, total), total)}

    def sample(self, training_input, read):
        """Returns a text that the model wrote; always with the same random numbers, so that texts compare."""
        p = self.params
        if not p.sample_length:
            return None
        if self._sampler is None:
            self._sampler = generation.Generator(self.body, training_input.input_spec.shape[1], generation.Sampling(), read)
        pieces = generation.text_pieces(self._sampler, training_input.tokenizer, p.sample_prompt, p.sample_length)
        return p.sample_prompt + ''.join(pieces)

    def baselines(self, train_input_params, evaluation_input):
        """Returns the bits per byte of an n-gram model of the same training text, where `n_gram_order` asks for one."""
        order, tokenizer = self.params.n_gram_order, evaluation_input.tokenizer
        if not order:
            return {}
        training = train_input_params.Instantiate()
        model = n_gram.NGramModel(training.tokens, order, tokenizer.vocab_size)
        tokens = evaluation_input.tokens
        bits = model.bits(np.concatenate([[tokenizer.end_id], tokens]))[1:]
        return {f'{order}-gram model bits_per_byte': bits.sum() / tokenizer.num_bytes(tokens).numpy().sum()}
