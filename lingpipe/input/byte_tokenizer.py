"""Text as its UTF-8 bytes: the tokenizer that needs no vocabulary."""

import tensorflow as tf

from lingpipe import hyperparams


class ByteTokenizer:
    """Every byte is a token; byte 0, which does not occur in text, ends a document.

    A tokenizer of another kind is a class with the same attributes and methods, to be set as `TextInput`'s `tokenizer`.

    Attributes:
        vocab_size: number of different tokens.
        end_id: the token that ends a document; also what the first token of a text is predicted from, and padding.
    """

    vocab_size = 256
    end_id = 0

    @classmethod
    def Params(cls):
        """Returns the InstantiableParams of this tokenizer."""
        hyperparams.RegisterType(cls)
        return hyperparams.InstantiableParams(cls)

    def __init__(self, params):
        self.params = params

    def encode(self, text):
        """Maps a text, a scalar string tensor, to tokens, int32 `[length]`, without an end."""
        return tf.cast(tf.io.decode_raw(text, tf.uint8), tf.int32)

    def decode(self, tokens):
        """Returns the text, a Python string, of a sequence of integers; bytes that are no UTF-8 show as '\\ufffd'."""
        return bytes(token for token in map(int, tokens) if token != self.end_id).decode('utf-8', errors='replace')

    def num_bytes(self, tokens):
        """Returns how many bytes of text each token stands for, float32; the end of a document counts as one."""
        return tf.ones_like(tokens, tf.float32)
