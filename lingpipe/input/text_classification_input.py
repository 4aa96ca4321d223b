"""Batches of texts and their classes for KerasHub's text classifiers."""

import numpy as np
import tensorflow as tf

from lingpipe import hyperparams, spelling
from lingpipe.input import record_fields, record_input, text_records


class TextClassificationInput(record_input.EncoderInput):
    """Texts with a label, converted to tensors by the KerasHub preprocessor for the tokenizer.

    ::

        {"text": "Fine.", "label": "good"} -> <s> F ine . </s> <pad> <pad>    class 1 of ['bad', 'good'], weight 1

    The preprocessor truncates longer texts to `sequence_length`. Everything is tokenized when the input is created.

    Attributes:
        class_names: names of the classes in the order of their numbers.
    """

    example_name = 'texts'
    _fields = 'text_field', 'label_field'

    @classmethod
    def Params(cls) -> hyperparams.InstantiableParams:
        p = super().Params().Set(name='text_classification_input')
        p.Define('text_field', 'text', 'Field of the text.')
        p.Define('label_field', 'label', "Field of the label: the name of a class, a text or an integer; 'label' of "
                                         'text folders is the name of the folder.')
        p.Define('class_names', None, 'Names of the classes in the order of their numbers; None: as in the TFDS '
                                      'feature, else the labels of class_files, sorted (by value if all are integers).')
        p.Define('class_files', None, 'Files, as `files`, whose labels are the classes: the files of the training run.')
        return p

    @staticmethod
    def ClassNames(params: hyperparams.Params) -> list[str]:
        """Return the names of the classes; see `BaseInput`.

        Raises:
            ValueError: nothing names the classes; the records of one input may lack some.
        """
        names = _class_names(params)
        if names is None:
            raise ValueError('class_names: nothing names the classes. Set class_names, or class_files to the files of '
                             'the training run, for training and evaluation.')
        return names

    @staticmethod
    def FileBatches(params: hyperparams.Params, files: str) -> tuple[int, tf.data.Dataset]:
        """Make batches of texts from files of records, which need no label; see `BaseInput`."""
        records = list(text_records.from_files(files, params.format))
        if not records:
            raise ValueError(f'files: {files!r} holds no record. Give files with records.')
        texts, problems = zip(*[_text_or_problem(record, params.text_field) for record in records])
        preprocessor = params.tokenizer.Instantiate().classifier_preprocessor(params.sequence_length)
        features = record_input.by_pieces(lambda some: preprocessor(list(texts[some])), len(texts))
        inputs = {name: features[name].astype(spec.dtype.as_numpy_dtype)
                  for name, spec in params.cls.InputSpec(params).items()}
        names = [record.place for record in records]
        return len(names), tf.data.Dataset.from_tensor_slices((inputs, names, list(problems))).batch(params.batch_size)

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    def _prepare(self):
        self.class_names = self.ClassNames(self.params)

    def _row(self, record):
        p = self.params
        label = record_fields.label(record, p.label_field)
        if label not in self.class_names:
            raise record_fields.BadRecord(f'field {p.label_field!r}: {label!r} is not a class'
                                          f'{spelling.did_you_mean(label, self.class_names)}')
        return record_fields.text(record, p.text_field), label

    def _arrays(self, rows):
        _, texts, labels, weights = map(list, zip(*rows))
        preprocessor = self.tokenizer.classifier_preprocessor(self.params.sequence_length)
        features = record_input.by_pieces(lambda some: preprocessor(texts[some]), len(texts))
        numbers = {name: number for number, name in enumerate(self.class_names)}
        return (*(features[name].astype(spec.dtype.as_numpy_dtype) for name, spec in self.input_spec.items()),
                np.array([numbers[label] for label in labels], np.int32), np.array(weights, np.float32))

    def _batch(self, columns, visits):
        *features, labels, weights = columns
        return dict(zip(self.input_spec, features)), labels, weights


def _text_or_problem(record, field):
    """Return the text of a record and '', or '' and what is wrong with it."""
    try:
        return ('', record.problem) if record.problem else (record_fields.text(record, field), '')
    except record_fields.BadRecord as error:
        return '', str(error)


def _class_names(p):
    """Return the names of the classes, or None if nothing names them."""
    if p.class_names is not None:
        if not isinstance(p.class_names, (list, tuple)) or not all(isinstance(name, str) for name in p.class_names):
            raise ValueError(f'class_names: {p.class_names!r} is not a list of names. Write it like '
                             "['negative', 'positive'].")
        if len(set(p.class_names)) < len(p.class_names):
            raise ValueError(f'class_names: {list(p.class_names)} has a name twice. Name each class once.')
        return list(p.class_names)
    if p.class_files is not None:
        records = text_records.from_files(p.class_files, p.format)
        labels = set(record_fields.good_values(record_fields.label, records, p.label_field))
        if not labels:
            raise ValueError(f'class_files: {p.class_files!r} holds no label in the field {p.label_field!r}. Give the '
                             'files of the training run.')
        return _in_order(labels)
    return text_records.class_names_of_tfds(p.dataset, p.data_dir, p.label_field) if p.dataset else None


def _in_order(labels):
    """Sort labels: by value if all are integers, else as texts."""
    try:
        return sorted(labels, key=lambda label: (int(label), label))  # '1' and '01' are one number
    except ValueError:
        return sorted(labels)
