"""Bytes as tokens, and prompts and continuations in the tokens of any tokenizer."""

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from lingpipe import hyperparams


class ByteTokenizer:
    """Every byte is a token; byte 0, which does not occur in text, ends a document.

    Another tokenizer is a class with the same attributes and methods, set as the field `tokenizer` of `TextInput`.

    Attributes:
        vocab_size: number of different tokens.
        end_id: the token that ends a document; the first token of a text is predicted from it, and it is the padding.
        start_ids: the tokens at the start of a text in a row of `InstructionInput` and in generation.
        stop_ids: the tokens that end a text in generation.
        pad_id: the token that pads a row of `InstructionInput`.
    """

    vocab_size = 256
    end_id = 0
    start_ids = (0,)
    stop_ids = (0,)
    pad_id = 0

    @classmethod
    def Params(cls) -> hyperparams.InstantiableParams:
        hyperparams.RegisterType(cls)
        return hyperparams.InstantiableParams(cls)

    def __init__(self, params: hyperparams.Params) -> None:
        self.params = params

    def encode(self, text: tf.Tensor) -> tf.Tensor:
        """Map a text, a scalar string tensor, to tokens, int32 `[length]`, without an end token."""
        return tf.cast(tf.io.decode_raw(text, tf.uint8), tf.int32)

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text, a Python string, of a sequence of integers; bytes that are not UTF-8 become '\\ufffd'."""
        return bytes(token for token in map(int, tokens) if token != self.end_id).decode('utf-8', errors='replace')

    def num_bytes(self, tokens: tf.Tensor) -> tf.Tensor:
        """Return the number of bytes of text of each token, float32; the end of a document counts as one byte."""
        return tf.ones_like(tokens, tf.float32)


def prompt_tokens(tokenizer: Any, prompt: str) -> list[int]:
    """Return the tokens of a text at the start of a document, as in training; if there are none, the end token."""
    return [*tokenizer.start_ids, *tokenizer.encode(tf.constant(prompt)).numpy().tolist()] or [tokenizer.end_id]


def continuation(tokenizer: Any, known: list[int], written: list[int]) -> str:
    """Return the text that was written after a prompt; `written` has no stop token.

    Prompt and text are decoded together, because SentencePiece shows no space before the first token of a text.
    """
    before, whole = tokenizer.decode(known), tokenizer.decode([*known, *written])
    return whole[len(before):] if whole[:len(before)] == before else tokenizer.decode(written)
