"""Translating one text with a translation model."""

import tensorflow as tf

from lingpipe.pipeline import variable_values


class Translator:
    """Translates texts, one at a time, by a function that is compiled once.

    Args:
        task: `TranslationModel` whose body is built.
        tokenizer: what makes tokens of a text and a text of tokens.
        input_spec: `{'source', 'target'}`, `tf.TensorSpec` `[batch, length]`, for the greatest lengths.
        read: function that gives the value to use for a Keras variable, such as its moving average.
    """

    def __init__(self, task, tokenizer, input_spec, read=variable_values.read_variable):
        self._tokenizer, self._source_length = tokenizer, input_spec['source'].shape[1]
        target_length = input_spec['target'].shape[1]
        self._function = tf.function(
            lambda source: task.translate(source, target_length, read=read)[0][0], autograph=False)

    def __call__(self, text):
        """Returns the translation of a text.

        Raises:
            ValueError: the text is empty, or longer than the model can read.
        """
        tokens = self._tokenizer.encode(tf.constant(text))
        count = int(tf.size(tokens))
        if not 0 < count <= self._source_length:
            raise ValueError(f'The text to translate has {count} tokens: {text!r}. Give one of 1 to {self._source_length}, or '
                             'train with a larger input.source_length.')
        padding = tf.fill([self._source_length - count], tf.constant(self._tokenizer.end_id, tf.int32))
        return self._tokenizer.decode(self._function(tf.concat([tokens, padding], 0)[tf.newaxis]).numpy())
