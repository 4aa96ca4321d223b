"""A byte-pair tokenizer whose vocabulary is learnt from the training text of a model."""

import functools
import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from lingpipe import hyperparams, spelling
from lingpipe.input import hub_tokenizer, text_input

# Special tokens of KerasHub's classes, in the order of their numbers; those that begin, end and pad a text. KerasHub
# pads texts of GPT-2 with token 0, and ends generation if the padding is the end of a text.
_SPECIAL_TOKENS = {'BartTokenizer': ['<s>', '<pad>', '</s>'],
                   'GPT2Tokenizer': ['<|padding|>', '<|endoftext|>'],
                   'GPTNeoXTokenizer': ['<|padding|>', '<|endoftext|>'],
                   'RobertaTokenizer': ['<s>', '<pad>', '</s>', '<mask>']}
_START_PAD_END = {'BartTokenizer': (0, 1, 2), 'GPT2Tokenizer': (1, 0, 1), 'GPTNeoXTokenizer': (1, 0, 1),
                  'RobertaTokenizer': (0, 1, 2)}


class BytePairTokenizer:
    """Tokens are the byte sequences that byte-pair encoding merges most often (arXiv 1508.07909, section 3.2).

    The `tokenizers` library learns the vocabulary from a split of a TFDS dataset. This takes about a second per
    megabyte, and the result is always the same. The vocabulary has the form of GPT-2's and RoBERTa's, so KerasHub reads
    it.

    Attributes:
        vocab_size: number of different tokens.
        start_ids: the tokens at the start of a text.
        end_id: the token that ends a document.
        stop_ids: the tokens that end a text in generation: `end_id`.
        pad_id: the token that pads rows.
    """

    @classmethod
    def Params(cls) -> hyperparams.InstantiableParams:
        """Returns the InstantiableParams of this tokenizer."""
        hyperparams.RegisterType(cls)
        p = hyperparams.InstantiableParams(cls)
        p.Define('dataset', 'pydoc_topics', 'TFDS name of the dataset whose text gives the vocabulary.')
        p.Define('split', 'train', 'TFDS split of it.')
        p.Define('data_dir', None, 'Directory of prepared data; None: $TFDS_DATA_DIR, or ~/tensorflow_datasets.')
        p.Define('text_feature', None, "Feature that is read; None: 'text', or the only text of the dataset.")
        p.Define('vocab_size', 2048, 'Largest number of tokens; 256 are the bytes, and some are special.')
        p.Define('keras_hub_class', 'GPT2Tokenizer', f'Class of keras_hub.models that the vocabulary is for: one of '
                                                     f'{sorted(_SPECIAL_TOKENS)}.')
        return p

    @staticmethod
    def ClassifierFeatures(params: hyperparams.Params) -> list[str]:
        """Returns the names of the tensors that classifiers with this tokenizer take; learns no vocabulary.

        Args:
            params: `BytePairTokenizer.Params()`.

        Raises:
            ValueError: the vocabulary is not for a text classifier.
        """
        _require_classifier(params.keras_hub_class)
        return ['padding_mask', 'token_ids']

    def __init__(self, params: hyperparams.Params) -> None:
        if not isinstance(params.vocab_size, int) or params.vocab_size < 260:
            raise ValueError(f'vocab_size={params.vocab_size!r} is too small: 256 bytes and up to 4 special tokens are '
                             'tokens. Set it to 512, for instance.')
        if params.keras_hub_class not in _SPECIAL_TOKENS:
            raise ValueError(f'keras_hub_class={params.keras_hub_class!r} is unknown'
                             f'{spelling.did_you_mean(str(params.keras_hub_class), _SPECIAL_TOKENS)}')
        self.params = params
        self.vocab_size = params.vocab_size
        self._special_tokens = _SPECIAL_TOKENS[params.keras_hub_class]  # they come first
        start_id, self.pad_id, self.end_id = _START_PAD_END[params.keras_hub_class]
        self.start_ids, self.stop_ids = (start_id,), (self.end_id,)

    def encode(self, text: tf.Tensor) -> tf.Tensor:
        """Maps a text, a scalar string tensor, to tokens, int32 `[length]`, without an end."""
        return tf.ensure_shape(tf.numpy_function(self._encode, [text], tf.int32, stateful=False), [None])

    def decode(self, tokens: Iterable[int]) -> str:
        """Returns the text, a Python string, of a sequence of integers; bytes that are not UTF-8 become '\\ufffd'."""
        pieces = [self._pieces[token] for token in map(int, tokens)]
        return b''.join(pieces).decode('utf-8', errors='replace')

    def num_bytes(self, tokens: tf.Tensor) -> tf.Tensor:
        """Returns the number of bytes of text of each token, float32; the end of a document counts as one byte."""
        sizes = np.array([len(piece) for piece in self._pieces], np.float32)
        sizes[self.end_id] = 1
        return tf.gather(tf.constant(sizes), tokens)

    def keras_hub_tokenizer(self) -> Any:
        """Returns the tokenizer of `keras_hub.models` that makes the same tokens."""
        hub = hub_tokenizer.import_keras_hub()
        model = json.loads(self._tokenizer.to_str())['model']
        merges = [merge if isinstance(merge, str) else ' '.join(merge) for merge in model['merges']]
        return getattr(hub.models, self.params.keras_hub_class)(vocabulary=model['vocab'], merges=merges)

    def classifier_preprocessor(self, sequence_length: int) -> Any:
        """Returns the `keras_hub.models.TextClassifierPreprocessor` for this tokenizer.

        Args:
            sequence_length: number of tokens in a row.

        Raises:
            ValueError: the vocabulary is not for a text classifier.
        """
        _require_classifier(self.params.keras_hub_class)
        models = hub_tokenizer.import_keras_hub().models
        return models.RobertaTextClassifierPreprocessor(self.keras_hub_tokenizer(), sequence_length=sequence_length)

    def seq_2_seq_preprocessor(self, source_length: int, target_length: int) -> Any:
        """Returns the `keras_hub.models.Seq2SeqLMPreprocessor` for this tokenizer.

        Args:
            source_length: number of tokens in a row of sources.
            target_length: number of tokens in a row of targets.

        Raises:
            ValueError: the vocabulary is not for a sequence-to-sequence model.
        """
        if self.params.keras_hub_class != 'BartTokenizer':
            raise ValueError(f'keras_hub_class={self.params.keras_hub_class!r} belongs to no sequence-to-sequence '
                             "model of KerasHub. Set it to 'BartTokenizer'.")
        return hub_tokenizer.import_keras_hub().models.BartSeq2SeqLMPreprocessor(
            self.keras_hub_tokenizer(), encoder_sequence_length=source_length, decoder_sequence_length=target_length)

    def _encode(self, text):
        return np.array(self._tokenizer.encode(np.asarray(text).item().decode('utf-8', errors='replace')).ids, np.int32)

    @functools.cached_property
    def _tokenizer(self):
        try:
            import tokenizers
        except ImportError as error:
            raise ValueError("A BytePairTokenizer needs the package tokenizers. Install it by pip install "
                             "'lingpipe[hub]'.") from error
        p = self.params
        texts = text_input.TfdsText(p.dataset, p.split, p.data_dir, p.text_feature).texts().as_numpy_iterator()
        tokenizer = tokenizers.ByteLevelBPETokenizer()
        tokenizer.train_from_iterator((text.decode('utf-8', errors='replace') for text in texts), p.vocab_size,
                                      special_tokens=self._special_tokens, show_progress=False)
        return tokenizer

    @functools.cached_property
    def _pieces(self):
        """The bytes of each token; those that no text needed are empty."""
        letters = hub_tokenizer.bytes_of_letters()
        pieces = [b''] * self.vocab_size
        for token, number in self._tokenizer.get_vocab().items():
            pieces[number] = b'' if token in self._special_tokens else bytes(letters[letter] for letter in token)
        return pieces


def _require_classifier(keras_hub_class):
    if keras_hub_class != 'RobertaTokenizer':
        raise ValueError(f'keras_hub_class={keras_hub_class!r} belongs to no text classifier of KerasHub. Set it to '
                         "'RobertaTokenizer'.")
