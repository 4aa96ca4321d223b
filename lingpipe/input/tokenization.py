"""A tokenizer of bytes, and a tokenizer that learns byte pairs from texts."""

import functools
import json
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from lingpipe import hyperparams, wording
from lingpipe.input import hub_tokenizer


class ByteTokenizer:
    """Tokenizer of bytes. Byte 0, which does not occur in text, ends a document.

    Another tokenizer needs the same attributes and methods. Set the Params of a tokenizer as `tokenizer` of an input.

    Attributes:
        end_id: the token before and after each document. Text and translation inputs also pad with this token.
        start_ids: the tokens that begin a text in generation and `InstructionInput`; in `TextInput`, without `end_id`.
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
        """Map a text (scalar string tensor) to tokens (int32 `[length]`) without an end token."""
        return tf.cast(tf.io.decode_raw(text, tf.uint8), tf.int32)

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of tokens as a Python string. Bytes that are not UTF-8 become '\\ufffd'."""
        return bytes(token for token in map(int, tokens) if token != self.end_id).decode('utf-8', errors='replace')

    def num_bytes(self, tokens: tf.Tensor) -> tf.Tensor:
        """Return the number of text bytes of each token, float32. The end of a document counts as one byte."""
        return tf.ones_like(tokens, tf.float32)


def prompt_tokens(tokenizer: Any, prompt: str) -> list[int]:
    """Return the start tokens and the tokens of a prompt. If there are no tokens, return the end token."""
    return [*tokenizer.start_ids, *tokenizer.encode(tf.constant(prompt)).numpy().tolist()] or [tokenizer.end_id]


def continuation(tokenizer: Any, known: list[int], written: list[int]) -> str:
    """Decode `written`, the tokens that follow the prompt tokens `known`. `written` must have no stop token."""
    # Both are decoded together, because SentencePiece drops a space before the first token that it decodes.
    before, whole = tokenizer.decode(known), tokenizer.decode([*known, *written])
    return whole[len(before):] if whole[:len(before)] == before else tokenizer.decode(written)


class _Kind(NamedTuple):
    """The special tokens of a KerasHub tokenizer class, which have the lowest ids."""

    special_tokens: list[str]
    start_id: int
    pad_id: int
    end_id: int


# KerasHub pads texts of GPT-2 with token 0, and ends generation if the padding token is the end token.
_OF_GPT = _Kind(['<|padding|>', '<|endoftext|>'], 1, 0, 1)
_KINDS = {
    'BartTokenizer': _Kind(['<s>', '<pad>', '</s>'], 0, 1, 2),
    'GPT2Tokenizer': _OF_GPT,
    'GPTNeoXTokenizer': _OF_GPT,
    'RobertaTokenizer': _Kind(['<s>', '<pad>', '</s>', '<mask>'], 0, 1, 2),
}


class BytePairTokenizer(hub_tokenizer.KerasHubTokenizer):
    """Tokenizer of bytes and byte sequences, by byte-pair encoding (arXiv 1508.07909, section 3.2).

    The vocabulary is learned from files or a TFDS dataset. Learning is deterministic, and takes a second per megabyte.
    """

    @classmethod
    def Params(cls) -> hyperparams.InstantiableParams:
        hyperparams.RegisterType(cls)
        p = hyperparams.InstantiableParams(cls)
        p.Define('files', None, 'Files whose texts give the vocabulary, as `files` of TextClassificationInput.')
        p.Define('dataset', None, 'TFDS name of the dataset whose texts give the vocabulary, instead of files.')
        p.Define('split', 'train', 'TFDS split of it.')
        p.Define('data_dir', None, 'Directory of prepared data; None: $TFDS_DATA_DIR, or ~/tensorflow_datasets.')
        p.Define('text_feature', None, "Feature or field that is read; None: 'text', or the only text of the dataset.")
        p.Define('vocab_size', 2048, 'Largest number of tokens; 256 are the bytes, and some are special.')
        p.Define('keras_hub_class', 'GPT2Tokenizer', f'Class of keras_hub.models that the vocabulary is for: one of '
                                                     f'{sorted(_KINDS)}.')
        return p

    @staticmethod
    def ClassifierFeatures(params: hyperparams.Params) -> list[str]:
        """Return the names of a classifier's input tensors, without learning a vocabulary."""
        return ['padding_mask', 'token_ids']

    def __init__(self, params: hyperparams.Params) -> None:
        if not isinstance(params.vocab_size, int) or params.vocab_size < 260:
            raise ValueError(f'vocab_size={params.vocab_size!r} is too small: 256 bytes and up to 4 special tokens are '
                             'tokens. Set it to 512, for instance.')
        if (params.files is None) == (params.dataset is None):
            raise ValueError(f'files={params.files!r} and dataset={params.dataset!r}: a BytePairTokenizer learns from '
                             'one of them. Set one, to the texts that the model is trained on.')
        if params.keras_hub_class not in _KINDS:
            raise ValueError(f'keras_hub_class={params.keras_hub_class!r} is unknown'
                             f'{wording.did_you_mean(str(params.keras_hub_class), _KINDS)}')
        self.params = params
        self.vocab_size = params.vocab_size
        kind = _KINDS[params.keras_hub_class]
        self.end_id, self.pad_id = kind.end_id, kind.pad_id
        self.start_ids, self.stop_ids = (kind.start_id,), (kind.end_id,)

    def encode(self, text: tf.Tensor) -> tf.Tensor:
        """Map a text (scalar string tensor) to tokens (int32 `[length]`) without an end token."""
        return tf.ensure_shape(tf.numpy_function(self._encode, [text], tf.int32, stateful=False), [None])

    def _encode(self, text):
        return np.array(self._learnt.encode(np.asarray(text).item().decode('utf-8', errors='replace')).ids, np.int32)

    @functools.cached_property
    def _learnt(self):
        import tokenizers

        p, tokenizer = self.params, tokenizers.ByteLevelBPETokenizer()
        tokenizer.train_from_iterator(
            _texts(p), p.vocab_size,
            special_tokens=_KINDS[p.keras_hub_class].special_tokens, show_progress=False)
        return tokenizer

    @functools.cached_property
    def _tokenizer(self):
        model = json.loads(self._learnt.to_str())['model']
        merges = [merge if isinstance(merge, str) else ' '.join(merge) for merge in model['merges']]
        hub_class = getattr(hub_tokenizer.import_keras_hub().models, self.params.keras_hub_class)
        return hub_class(vocabulary=model['vocab'], merges=merges)

    def preprocessor(self, task: str, **lengths: int) -> Any:
        """Return KerasHub's preprocessor for `task`. Raise ValueError if KerasHub has no such preprocessor."""
        models, chosen = hub_tokenizer.import_keras_hub().models, self.params.keras_hub_class
        suitable = [name for name in _KINDS if hasattr(models, name.replace('Tokenizer', task))]
        if chosen not in suitable:
            raise ValueError(f'keras_hub_class={chosen!r} has no {task} in KerasHub. Set it to '
                             f'{" or ".join(map(repr, suitable))}.')
        return getattr(models, chosen.replace('Tokenizer', task))(self.keras_hub_tokenizer(), **lengths)


def _texts(p):
    from lingpipe.input import text_input, text_records, tfds_builders  # these import TFDS, which models do not need

    if p.files:
        yield from (record.text(p.text_feature or 'text') for record in text_records.from_files(p.files))
        return
    feature = text_input.text_feature(p.dataset, p.data_dir, p.text_feature)
    for example in tfds_builders.Split(p.dataset, p.split, p.data_dir).examples().as_numpy_iterator():
        yield example[feature].decode('utf-8', errors='replace')
