"""The tokenizer of a KerasHub preset."""

import functools
import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from lingpipe import hyperparams

_SPACE = '▁'  # how SentencePiece writes it


class KerasHubTokenizer:
    """The tokenizer of a KerasHub preset. It has the attributes of `ByteTokenizer`."""

    @classmethod
    def Params(cls) -> hyperparams.InstantiableParams:
        hyperparams.RegisterType(cls)
        p = hyperparams.InstantiableParams(cls)
        p.Define('preset', None, "KerasHub preset: a folder, a name such as 'gpt2_base_en', or 'hf://USER/MODEL'.")
        return p

    def __init__(self, params: hyperparams.Params) -> None:
        if not params.preset:
            raise ValueError('tokenizer.preset=None: no preset was given, whose tokenizer makes the tokens. Set it to '
                             "that of the model, such as 'gpt2_base_en' or a folder.")
        self.params = params
        self.vocab_size = self._tokenizer.vocabulary_size()
        self.end_id, self.pad_id = self._tokenizer.end_token_id, self._tokenizer.pad_token_id
        second_end = getattr(self._tokenizer, 'end_token2_id', None)  # Llama 3 has a second one, for conversations
        self.stop_ids = (self.end_id,) if second_end is None else (self.end_id, second_end)

    @staticmethod
    def ClassifierFeatures(params: hyperparams.Params) -> list[str]:
        """Return the names of a classifier's input tensors, such as 'token_ids'."""
        return sorted(KerasHubTokenizer(params).preprocessor('TextClassifierPreprocessor')(tf.constant(['a'])))

    @functools.cached_property
    def start_ids(self) -> tuple[int, ...]:
        """Tuple with the id of the token that KerasHub puts before a text. Empty if there is no such token."""
        preprocessor = import_keras_hub().models.CausalLMPreprocessor.from_preset(self.params.preset)
        start = preprocessor.tokenizer.start_token_id
        return (start,) if preprocessor.add_start_token and start is not None else ()

    def encode(self, text: tf.Tensor) -> tf.Tensor:
        """Map a text (scalar string tensor) to tokens (int32 `[length]`) without start and end tokens."""
        return tf.cast(self._tokenizer(text), tf.int32)

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of tokens as a Python string, without special tokens."""
        special = set(self._tokenizer.special_token_ids)
        return self._tokenizer.detokenize(np.array([token for token in map(int, tokens) if token not in special]))

    def num_bytes(self, tokens: tf.Tensor) -> tf.Tensor:
        """Return how many bytes of text each token stands for, float32.

        If the tokenizer changes white space, as SentencePiece does, these are bytes of the changed text. The end token
        stands for one byte, or for none if the tokenizer puts a space before the text.

        Raises:
            ValueError: the bytes of a token are unknown, as with BERT.
        """
        return tf.gather(tf.constant(self._sizes), tokens)

    def keras_hub_tokenizer(self) -> Any:
        """Return KerasHub's own object for this tokenizer, a `keras_hub.tokenizers.Tokenizer`."""
        return self._tokenizer

    def preprocessor(self, task: str, **lengths: int) -> Any:
        """Return KerasHub's preprocessor of class `task`, such as 'TextClassifierPreprocessor'."""
        return getattr(import_keras_hub().models, task).from_preset(self.params.preset, **lengths)

    @functools.cached_property
    def _sizes(self):
        classes, tokenizer = import_keras_hub().tokenizers, self._tokenizer
        numbers = {token: tokenizer.token_to_id(token) for token in tokenizer.get_vocabulary()}
        sizes = np.zeros([1 + max(numbers.values())], np.float32)
        sizes[self.end_id] = 1  # the end of a text counts as one byte
        if isinstance(tokenizer, classes.BytePairTokenizer):
            found = _sizes_of_letters(numbers)
        elif isinstance(tokenizer, classes.SentencePieceTokenizer):
            found = {numbers[token]: _size_of_piece(token) for token in numbers}
            found[tokenizer.token_to_id(' ')] = 1  # there is no such piece, so this is the unknown piece
            # If SentencePiece puts a space before every text, this space counts instead of the end.
            sizes[self.end_id] = not tokenizer.id_to_token(int(tokenizer('a')[0])).startswith(_SPACE)
        else:
            raise ValueError(f'tokenizer.preset={self.params.preset!r} has a {type(tokenizer).__name__}, whose tokens '
                             'do not say how many bytes of text they stand for. Use the preset of a language model.')
        for number in set(found).difference(tokenizer.special_token_ids):
            sizes[number] = found[number]
        return sizes

    @functools.cached_property
    def _tokenizer(self):
        return import_keras_hub().tokenizers.Tokenizer.from_preset(self.params.preset)


def _sizes_of_letters(numbers):
    """Return {id: number of bytes} for all tokens."""
    from tokenizers import pre_tokenizers

    alphabet = set(pre_tokenizers.ByteLevel.alphabet())  # GPT-2's: one letter stands for one byte
    return {number: len(token if alphabet >= set(token) else token.encode()) for token, number in numbers.items()}


def _size_of_piece(piece):
    return 1 if re.fullmatch('<0x[0-9A-F]{2}>', piece) else len(piece.replace(_SPACE, ' ').encode())


def import_keras_hub() -> Any:
    """Return the module `keras_hub`. Raise ValueError if KerasHub is not installed."""
    try:
        import keras_hub  # here, because the import takes a second
    except ImportError as error:
        raise ValueError(f'Models and tokenizers of KerasHub need KerasHub ({error}). Install it by pip install '
                         "'lingpipe[hub]'.") from error
    return keras_hub
