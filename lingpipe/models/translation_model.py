"""Translation models: predicting every token of a target from its source and the tokens before it."""

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from lingpipe import hyperparams
from lingpipe.devices import variable_placement
from lingpipe.layers import translation
from lingpipe.models import base_task, beam_search, language_model


class Translator:
    """Translates texts, one at a time, by a function that is compiled once.

    Args:
        task: `TranslationModel` whose body is built.
        tokenizer: tokenizer of the model's input.
        input_spec: `{'source', 'target'}`, `tf.TensorSpec` `[batch, length]`, with the greatest lengths.
        read: function that returns the value to use for a Keras variable, such as its moving average.
    """

    def __init__(self, task: Any, tokenizer: Any, input_spec: dict,
                 read: Callable = variable_placement.read_variable) -> None:
        self._tokenizer, self._source_length = tokenizer, input_spec['source'].shape[1]
        target_length = input_spec['target'].shape[1]
        self._function = tf.function(
            lambda source: task.translate(source, target_length, read=read)[0][0], autograph=False)

    def __call__(self, text: Any) -> str:
        """Returns the translation of a text.

        Raises:
            ValueError: the text is empty, or longer than the model can read.
        """
        tokens = self._tokenizer.encode(tf.constant(text))
        count = int(tf.size(tokens))
        if not 0 < count <= self._source_length:
            raise ValueError(f'The text to translate has {count} tokens: {text!r}. Give one of 1 to '
                             f'{self._source_length}, or train with a larger input.source_length.')
        padding = tf.fill([self._source_length - count], tf.constant(self._tokenizer.end_id, tf.int32))
        return self._tokenizer.decode(self._function(tf.concat([tokens, padding], 0)[tf.newaxis]).numpy())


class TranslationModel(base_task.BaseTask):
    """Trains a body as `layers.translation.transformer_nmt_layers` returns it, and translates by beam search."""

    @classmethod
    def Params(cls) -> hyperparams.InstantiableParams:
        p = super().Params()
        p.Define('label_smoothing', 0.0, 'Probability spread evenly over all tokens (arXiv 1512.00567, section 7).')
        p.Define('end_id', 0, "Token that ends a target and comes before its first: the tokenizer's end_id.")
        p.Define('beam_size', 4, 'Number of beginnings that beam search keeps.')
        p.Define('length_penalty', 0.6, 'See beam_search.beam_search; 0 prefers short translations.')
        p.Define('sample_source', None, 'Text that is translated with every evaluation during training; None: none.')
        return p

    def __init__(self, params: hyperparams.InstantiableParams) -> None:
        super().__init__(params)
        self._translator: Any = None

    def loss(self, targets: tuple, outputs: Any) -> dict[str, Any]:
        """Computes the metrics of one micro-batch.

        Args:
            targets: tuple (labels, weights), each `[batch, length]`; tokens of weight 0 do not count.
            outputs: logits `[batch, length, vocab_size]`.

        Returns:
            Dictionary from name to (mean, weight): 'loss', the smoothed cross-entropy in nats per token;
            'log_perplexity', the plain one; 'accuracy' of the next token.
        """
        labels, weights = targets
        logits = tf.cast(outputs, tf.float32)
        total, mean = tf.reduce_sum(weights), language_model.weighted_mean
        nats = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        correct = tf.cast(tf.argmax(logits, -1, labels.dtype) == labels, tf.float32)
        smoothed = language_model.smoothed_cross_entropy(nats, logits, self.params.label_smoothing)
        return {'loss': (mean(smoothed, weights, total), total), 'log_perplexity': (mean(nats, weights, total), total),
                'accuracy': (mean(correct, weights, total), total)}

    def decoding_metrics(self, inputs: Any, targets: Any, read: Callable) -> dict[str, tuple]:
        """Translates a batch with and without a beam; see `BaseTask.decoding_metrics`.

        Returns:
            'exact_match_greedy' and 'exact_match_beam': how many translations equal the labels, token for token.
        """
        labels, weights = targets
        counts = tf.reduce_max(weights, 1)
        metrics = {}
        for name, beam_size in (('greedy', 1), ('beam', self.params.beam_size)):
            tokens, _ = self.translate(inputs['source'], labels.shape[1], beam_size, read)
            is_equal = tf.reduce_all((tokens == labels) | (weights == 0), 1)
            metrics[f'exact_match_{name}'] = (
                tf.reduce_sum(counts * tf.cast(is_equal, tf.float32)), tf.reduce_sum(counts))
        return metrics

    def sample(self, training_input: Any, read: Callable) -> str:
        """Translates `sample_source`; see `BaseTask.sample`."""
        text = self.params.sample_source
        if text is None:
            return None
        if self._translator is None:
            self._translator = Translator(self, training_input.tokenizer, training_input.input_spec, read)
        return f'{text} -> {self._translator(text)}'

    def translate(self, source: tf.Tensor, max_length: int, beam_size: int | None = None,
                  read: Callable = variable_placement.read_variable) -> tuple:
        """Translates; the encoder runs once, the decoder once for each token, with a cache on each of its devices.

        Args:
            source: tokens `[batch, source_length]`, padded.
            max_length: number of tokens of the longest translation, with its end.
            beam_size: number of beginnings that continue; None: `params.beam_size`.
            read: function that returns the value to use for a Keras variable, such as its moving average.

        Returns:
            Tokens int32 `[batch, max_length]`, `end_id` after the end, and scores `[batch]`.
        """
        beam_size = beam_size or self.params.beam_size
        decoder = _Decoder(self.body, read, source, beam_size)
        batch_size = source.shape[0]

        def next_log_probs(tokens, position, rows, caches):
            before = tf.where(position > 0, tokens[:, :, position - 1], self.params.end_id)
            logits, caches = decoder.step(tf.reshape(before, [-1, 1]), position, rows, caches)
            return tf.reshape(tf.nn.log_softmax(logits), [batch_size, beam_size, logits.shape[-1]]), caches

        return beam_search.beam_search(
            next_log_probs, decoder.empty_caches(max_length), batch_size, max_length, self.params.end_id, beam_size,
            self.params.length_penalty)


class _Decoder:
    """The layers of a built pipeline as they translate, each on the device of its partition::

        source ─> encoder ─> norm ─> keys and values of every decoder block, once
        token  ─> embedding ─> decoder blocks (and their caches) ─> logits, for every token

    Args:
        body: built `GPipeLayer`.
        read: function that returns the value to use for a Keras variable.
        source: tokens `[batch, source_length]`.
        beam_size: number of beginnings of each example.
    """

    def __init__(self, body, read, source, beam_size):
        self._device_of = {id(layer): stage.device for stage in body.stages for layer in stage.layers}
        self._mapping = []
        for variable in body.variables:
            with tf.device(variable.value.device):
                self._mapping.append((variable, read(variable)))
        begin = next(place for place, layer in enumerate(body.stack) if isinstance(layer, translation.TargetEmbedding))
        self._embedding, *self._blocks, self._head = body.stack[begin:]
        self._num_rows, self._is_greedy = source.shape[0] * beam_size, beam_size == 1
        self._sources = self._read_source(body.stack[:begin], source, beam_size)

    def _read_source(self, encoder, source, beam_size):
        inputs = {'source': source, 'target': tf.zeros([source.shape[0], 1], tf.int32)}  # the encoder passes it on
        for layer in encoder:
            inputs = self._on_device(layer, functools.partial(layer, inputs, training=False))
        source = self._on_device(self._embedding, lambda: self._embedding.source_norm(inputs['source']))
        return [self._on_device(block, lambda block=block: [
            tf.repeat(part, beam_size, axis=0)
            for part in (*block.cross_attention.project_source(source), inputs['source_mask'])])
            for block in self._blocks]

    def empty_caches(self, length):
        """Returns the list of the caches of the decoder blocks for `length` tokens."""
        return [self._on_device(block, lambda block=block: block.initial_cache(self._num_rows, length))
                for block in self._blocks]

    def step(self, tokens, position, rows, caches):
        """Returns logits `[rows, vocab_size]` after tokens `[rows, 1]`, and the new caches.

        The caches are those of the previous call, in which the rows were in another order.
        """
        x = self._on_device(self._embedding, lambda: self._embedding.decode(tokens, position))
        found = []
        for block, source, cache in zip(self._blocks, self._sources, caches):
            x, cache = self._on_device(block, functools.partial(self._decode, block, x, cache, source, position, rows))
            found.append(cache)
        return self._on_device(self._head, lambda: self._head({'target': x}))[:, 0], found

    def _decode(self, block, x, cache, source, position, rows):
        if not self._is_greedy:
            cache = tuple(tf.gather(part, rows) for part in cache)
        return block.decode(x, cache, source, position)

    def _on_device(self, layer, function):
        with tf.device(self._device_of[id(layer)]), keras.StatelessScope(
                state_mapping=self._mapping, initialize_variables=False):
            return function()
