"""Batches of texts and their classes for KerasHub's text classifiers."""

import numpy as np
import tensorflow as tf

from lingpipe import hyperparams
from lingpipe.input import labelled_text_input, record_fields, record_input


class TextClassificationInput(labelled_text_input.LabelledTextInput):
    """Texts with a label, converted to tensors by the KerasHub preprocessor for the tokenizer.

    ::

        {"text": "Fine.", "label": "good"} -> <s> F ine . </s> <pad> <pad>    class 1 of ['bad', 'good'], weight 1

    The preprocessor truncates longer texts to `sequence_length`. Everything is tokenized when the input is created.

    Attributes:
        example_name: word for an example.
    """

    example_name = 'texts'
    _fields = 'text_field', 'label_field'

    @classmethod
    def Params(cls) -> hyperparams.InstantiableParams:
        """Returns the InstantiableParams of this input; see `LabelledTextInput.Params`."""
        p = super().Params().Set(name='text_classification_input')
        p.Define('text_field', 'text', 'Field of the text.')
        return p

    @staticmethod
    def TargetSpec(params: hyperparams.Params) -> tuple[tf.TensorSpec, tf.TensorSpec]:
        """Returns the pair of the `tf.TensorSpec` of labels and weights `[batch_size]`; reads no records."""
        return tf.TensorSpec([params.batch_size], tf.int32), tf.TensorSpec([params.batch_size], tf.float32)

    def _arrays(self, rows):
        _, texts, labels, weights = map(list, zip(*rows))
        preprocessor = self.tokenizer.classifier_preprocessor(self.params.sequence_length)
        features = record_input.by_pieces(lambda some: preprocessor(texts[some]), len(texts))
        numbers = self._numbers(labels)
        return (*(features[name].astype(spec.dtype.as_numpy_dtype) for name, spec in self.input_spec.items()),
                np.array([numbers[label] for label in labels], np.int32), np.array(weights, np.float32))

    def _labels_of(self, record):
        return [record_fields.label(record, self.params.label_field)]

    def _row(self, record):
        label, = self._labels_of(record)
        self._require_class(label)
        return record_fields.text(record, self.params.text_field), label

    def _batch(self, columns, is_row, visits):
        *features, labels, weights = columns
        return dict(zip(self.input_spec, features)), labels, weights * tf.cast(is_row, tf.float32)
