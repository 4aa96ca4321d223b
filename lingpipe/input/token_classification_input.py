"""Batches of texts in tokens, each token with a class, for token classifiers of KerasHub's backbones."""

import itertools

import numpy as np
import tensorflow as tf

from lingpipe import hyperparams
from lingpipe.input import labelled_text_input, record_fields, record_input

_NO_LABEL = -1


class TokenClassificationInput(labelled_text_input.LabelledTextInput):
    """Tokens of the dataset, such as words, each with a label; the model's tokenizer may cut them into several parts.

    The first part of a token represents it, as in BERT (arXiv 1810.04805, section 5.3)::

        {"tokens": ["Ann", "visited", "Reykjavik"], "labels": ["person", "other", "place"]}

        token_ids   <s> Ann visited Rey k javik </s> <pad>
        labels       0   1     0     2  0   0    0     0      of ['other', 'person', 'place']
        weights      0   1     1     1  0   0    0     0      times the sample weight

    There is one blank between tokens if the tokenizer uses blanks. A text that is too long continues in further rows,
    from the token that does not fit. A token that is longer than a row is truncated.

    Attributes:
        example_name: word for an example.
    """

    example_name = 'rows'
    _fields = 'tokens_field', 'label_field'

    @classmethod
    def Params(cls) -> hyperparams.InstantiableParams:
        """Returns the InstantiableParams of this input; see `LabelledTextInput.Params`."""
        p = super().Params().Set(name='token_classification_input', label_field='labels')
        p.Define('tokens_field', 'tokens', 'Field of the tokens: a list of texts, or a text with spaces between them.')
        return p

    @staticmethod
    def TargetSpec(params: hyperparams.Params) -> tuple[tf.TensorSpec, tf.TensorSpec]:
        """Returns the pair of the `tf.TensorSpec` of labels and weights `[batch_size, length]`; reads no records."""
        shape = [params.batch_size, params.sequence_length]
        return tf.TensorSpec(shape, tf.int32), tf.TensorSpec(shape, tf.float32)

    def _arrays(self, rows):
        parts = self._parts_of_all(rows)
        kept = self._good(rows, lambda *row: self._checked(*row, parts))
        numbers = self._numbers(label for _, labels, _ in kept for label in labels)
        pieces = [(*piece, weight) for found, labels, weight in kept
                  for piece in self._pieces(found, [numbers[label] for label in labels])]
        tokens, labels, weights = zip(*pieces)
        classes = record_input.filled([[_NO_LABEL, *row] for row in labels], self.params.sequence_length, _NO_LABEL)
        return *self._token_rows(tokens), classes, np.array(weights, np.float32)

    def _labels_of(self, record):
        return record_fields.labels(record, self.params.label_field)

    def _row(self, record):
        p = self.params
        tokens, labels = record_fields.words(record, p.tokens_field), self._labels_of(record)
        if len(tokens) != len(labels):
            raise record_fields.BadRecord(f'field {p.label_field!r}: {len(labels)} labels for {len(tokens)} tokens.')
        for label in labels:
            self._require_class(label)
        return tokens, labels

    def _parts_of_all(self, rows):
        """Returns a dictionary from each token, with the blank before it, to its parts by the tokenizer."""
        texts = sorted({text for _, tokens, *_ in rows for text in _spaced(tokens)})
        return dict(zip(texts, self._tokenized(texts), strict=True))

    def _checked(self, tokens, labels, weight, parts):
        found = [parts[text] for text in _spaced(tokens)]
        for token, part in zip(tokens, found):
            if not len(part):
                raise record_fields.BadRecord(
                    f'field {self.params.tokens_field!r}: the tokenizer makes nothing of {token!r}.')
        return found, labels, weight

    def _pieces(self, parts, numbers):
        """Yields the model's tokens for each row, and for each token the number of a class or `_NO_LABEL`."""
        room = self._room
        tokens: list[int] = []
        labels: list[int] = []
        for part, number in zip(parts, numbers):
            if len(tokens) + min(len(part), room) > room:
                yield tokens, labels
                tokens, labels = [], []
            tokens = [*tokens, *part[:room]]
            labels = [*labels, number, *itertools.repeat(_NO_LABEL, len(tokens) - len(labels) - 1)]
        yield tokens, labels

    def _batch(self, columns, is_row, visits):
        tokens, lengths, labels, weights = columns
        weights = tf.cast(labels != _NO_LABEL, tf.float32) * (weights * tf.cast(is_row, tf.float32))[:, tf.newaxis]
        return self._tensors(tokens, lengths), tf.maximum(labels, 0), weights


def _spaced(tokens):
    return [tokens[0], *(f' {token}' for token in tokens[1:])]
