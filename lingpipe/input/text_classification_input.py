"""Batches of texts and their classes for KerasHub's text classifiers."""

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

    def __init__(self, params: hyperparams.Params) -> None:
        super().__init__(params)
        p = self.params
        records = self._read([p.text_field, p.label_field, p.weight_field], self._row)
        self._warn_of_bad_records()
        texts, labels, weights = map(list, zip(*(row for _, row in records)))
        preprocessor = self.tokenizer.classifier_preprocessor(p.sequence_length)
        features = record_input.by_pieces(lambda rows: preprocessor(texts[rows]), len(texts))
        numbers = self._numbers(labels)
        with tf.device('CPU:0'):
            self._columns = (
                *(tf.cast(features[name], spec.dtype) for name, spec in self.input_spec.items()),
                tf.constant([numbers[label] for label in labels], tf.int32), tf.constant(weights, tf.float32))

    def _labels_of(self, record):
        return [record_fields.label(record, self.params.label_field)]

    def _row(self, record):
        p, (label,) = self.params, self._labels_of(record)
        self._require_class(label)
        return record_fields.text(record, p.text_field), label, record_fields.weight(record, p.weight_field)

    def _batch(self, columns, is_row, visits):
        *features, labels, weights = columns
        return dict(zip(self.input_spec, features)), labels, weights * tf.cast(is_row, tf.float32)
