"""A task that trains a translation model, and translates texts."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from lingpipe import hyperparams
from lingpipe.devices import variable_placement
from lingpipe.layers import translation
from lingpipe.models import base_task, language_model


class Translator:
    """A function that translates one text.

    Args:
        input_spec: dictionary from 'source' and 'target' to `tf.TensorSpec` `[batch, largest length]`.
    """

    def __init__(self, task: Any, tokenizer: Any, input_spec: dict,
                 read: Callable = variable_placement.read_variable) -> None:
        self._tokenizer, self._source_length = tokenizer, input_spec['source'].shape[1]
        target_length = input_spec['target'].shape[1]
        self._function = tf.function(
            lambda source: task.translate(source, target_length, read)[0], autograph=False)

    def __call__(self, text: Any) -> str:
        """Return the translation of a text.

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
    """A task that trains a body of `layers.translation.transformer_nmt_layers`. It translates by greedy decoding."""

    @classmethod
    def Params(cls) -> hyperparams.InstantiableParams:
        p = super().Params()
        p.Define('label_smoothing', 0.0, 'Probability spread evenly over all tokens (arXiv 1512.00567, section 7).')
        p.Define('end_id', 0, "Token that ends a target and comes before its first: the tokenizer's end_id.")
        p.Define('sample_source', None, 'Text that is translated with every evaluation during training; None: none.')
        return p

    def __init__(self, params: hyperparams.InstantiableParams) -> None:
        super().__init__(params)
        self._translator: Any = None

    def loss(self, targets: tuple, outputs: Any) -> dict[str, Any]:
        """Return the metrics 'loss', 'log_perplexity' and 'accuracy' of one micro-batch.

        'loss' is the smoothed cross-entropy in nats per token. 'log_perplexity' is the plain cross-entropy.

        Args:
            targets: tuple (labels, weights), each `[batch, length]`. Tokens of weight 0 do not count.
            outputs: logits `[batch, length, vocab_size]`.
        """
        labels, weights = targets
        loss, accuracy, nats = language_model.token_metrics(labels, weights, outputs, self.params.label_smoothing)
        perplexity = language_model.weighted_mean(nats, weights, loss[1])
        return {'loss': loss, 'log_perplexity': perplexity, 'accuracy': accuracy}

    def decoding_metrics(self, inputs: Any, targets: Any, read: Callable) -> dict[str, tuple]:
        """Return the metric 'exact_match', the share of translations that equal the labels; see `BaseTask`."""
        labels, weights = targets
        counts = tf.reduce_max(weights, 1)
        tokens = self.translate(inputs['source'], labels.shape[1], read)
        is_equal = tf.reduce_all((tokens == labels) | (weights == 0), 1)
        return {'exact_match': (tf.reduce_sum(counts * tf.cast(is_equal, tf.float32)), tf.reduce_sum(counts))}

    def sample(self, training_input: Any, read: Callable) -> str | None:
        """Translate `sample_source`; see `BaseTask.sample`."""
        text = self.params.sample_source
        if text is None:
            return None
        if self._translator is None:
            self._translator = Translator(self, training_input.tokenizer, training_input.input_spec, read)
        return f'{text} -> {self._translator(text)}'

    def translate(self, source: tf.Tensor, max_length: int,
                  read: Callable = variable_placement.read_variable) -> tf.Tensor:
        """Translate source texts by greedy decoding.

        Args:
            source: tokens `[batch, source_length]`, padded.
            max_length: largest number of tokens of a translation, including the end token.

        Returns:
            Tokens, int32 `[batch, max_length]`, padded with `end_id`.
        """
        decoder, end_id = _Decoder(self.body, read, source), self.params.end_id
        tokens = tf.fill([source.shape[0], max_length], tf.constant(end_id, tf.int32))

        def is_unfinished(position, tokens, has_ended, caches):
            del tokens, caches
            return (position < max_length) & ~tf.reduce_all(has_ended)

        def step(position, tokens, has_ended, caches):
            before = tf.where(position > 0, tokens[:, position - 1], end_id)
            logits, caches = decoder.step(before[:, tf.newaxis], position, caches)
            chosen = tf.where(has_ended, end_id, tf.argmax(logits, -1, tf.int32))
            is_here = tf.range(max_length) == position
            tokens = tf.where(is_here, chosen[:, tf.newaxis], tokens)
            return position + 1, tokens, has_ended | (chosen == end_id), caches

        has_ended = tf.zeros([source.shape[0]], tf.bool)
        start = tf.constant(0), tokens, has_ended, decoder.empty_caches(max_length)
        return tf.while_loop(is_unfinished, step, start)[1]


class _Decoder:
    """The layers of a translation model, each on the device of its partition."""

    # source ─> encoder ─> norm ─> keys and values of every decoder block, once
    # token  ─> embedding ─> decoder blocks (and their caches) ─> logits, for every token

    def __init__(self, body, read, source):
        self._device_of = {id(layer): stage.device for stage in body.stages for layer in stage.layers}
        self._mapping = []
        for variable in body.variables:
            with tf.device(variable.value.device):
                self._mapping.append((variable, read(variable)))
        begin = next(place for place, layer in enumerate(body.stack) if isinstance(layer, translation.TargetEmbedding))
        self._embedding, *self._blocks, self._head = body.stack[begin:]
        self._num_rows = source.shape[0]
        self._sources = self._read_source(body.stack[:begin], source)

    def _read_source(self, encoder, source):
        inputs = {'source': source, 'target': tf.zeros([source.shape[0], 1], tf.int32)}  # the encoder passes it on
        for layer in encoder:
            inputs = self._run(layer, layer, inputs, training=False)
        source = self._run(self._embedding, self._embedding.source_norm, inputs['source'])
        return [(*self._run(block, block.cross_attention.project_source, source), inputs['source_mask'])
                for block in self._blocks]

    def empty_caches(self, length):
        """Return empty caches of the decoder blocks for `length` tokens."""
        return [self._run(block, block.initial_cache, self._num_rows, length) for block in self._blocks]

    def step(self, tokens, position, caches):
        """Return logits `[batch, vocab_size]` of the next tokens, and the new caches."""
        x = self._run(self._embedding, self._embedding.decode, tokens, position)
        found = []
        for block, source, cache in zip(self._blocks, self._sources, caches):
            x, cache = self._run(block, block.decode, x, cache, source, position)
            found.append(cache)
        return self._run(self._head, self._head, {'target': x})[:, 0], found

    def _run(self, layer, function, *arguments, **named):
        """Call a function on the device of a layer."""
        with tf.device(self._device_of[id(layer)]), keras.StatelessScope(
                state_mapping=self._mapping, initialize_variables=False):  # weights have the values from `read`
            return function(*arguments, **named)
