"""The base class of inputs of texts with classes, which have the same numbers in training and evaluation."""

import tensorflow as tf

from lingpipe import hyperparams, spelling
from lingpipe.input import encoder_input, record_fields, text_records


class LabelledTextInput(encoder_input.EncoderInput):
    """Records whose labels are classes, numbered in the order of their names.

    A subclass defines `_labels_of(record)`, calls `_require_class` for each label in `_row`, and `_numbers` in
    `_arrays`.

    Attributes:
        class_names: names of the classes in the order of their numbers.
        num_classes: number of classes.
    """

    @classmethod
    def Params(cls) -> hyperparams.InstantiableParams:
        """Returns the InstantiableParams of this input; see `RecordInput.Params`."""
        p = super().Params()
        p.Define('label_field', 'label', 'Field of the label: the name of a class, a text or an integer, or '
                                         "as many as there are tokens; 'label' of text folders is the name of the "
                                         'folder.')
        p.Define('class_names', None, 'Names of the classes in the order of their numbers; None: those of the TFDS '
                                      'feature, else the labels of class_files, sorted (by value if all are integers).')
        p.Define('class_files', None, 'Files, as `files`, whose labels are the classes; None: `files`, in training '
                                      'alone. Evaluation needs the files of the training run.')
        return p

    def _prepare(self):
        self.class_names = self._given_class_names()
        self._has_own_classes = self.class_names is None

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    def evaluation_dataset(self) -> tf.data.Dataset:
        """Returns every row once; see `RecordInput.evaluation_dataset`.

        Raises:
            ValueError: the classes come from the same records, which may lack some.
        """
        if self._has_own_classes:
            raise ValueError(f'class_names: the classes {self.class_names} were read from the records to be evaluated, '
                             'so their numbers may not be those of the training run. Set class_names, or class_files '
                             'to the files of the training run.')
        return super().evaluation_dataset()

    def _labels_of(self, record):
        """Returns the list of the labels of a record, or raises `BadRecord`."""
        raise NotImplementedError(f'{type(self).__name__} reads no labels. Write its method _labels_of(record).')

    def _require_class(self, label):
        if self.class_names is not None and label not in self.class_names:
            raise record_fields.BadRecord(f'field {self.params.label_field!r}: {label!r} is no class'
                                          f'{spelling.did_you_mean(label, self.class_names)}')

    def _numbers(self, labels):
        """Returns a dictionary from the name of each class to its number; `labels` are those of all records."""
        if self._has_own_classes:
            self.class_names = _in_order(set(labels))
        return {name: number for number, name in enumerate(self.class_names)}

    def _given_class_names(self):
        p = self.params
        if p.class_names is not None:
            if len(set(p.class_names)) < len(p.class_names):
                raise ValueError(f'class_names: {list(p.class_names)} has a name twice. Name each class once.')
            return list(p.class_names)
        if p.class_files is not None:
            return _in_order(self._labels_of_class_files())
        return text_records.class_names_of_tfds(p.dataset, p.data_dir, p.label_field) if p.dataset else None

    def _labels_of_class_files(self):
        """Returns the labels in class files; bad records are left out here, and reported in training on these files."""
        p, labels = self.params, set()
        for record in text_records.from_files(p.class_files, p.format, p.csv_columns):
            try:
                labels.update(self._labels_of(record))
            except record_fields.BadRecord:
                continue
        if not labels:
            raise ValueError(f'class_files: {p.class_files!r} holds no label in the field {p.label_field!r}. Give the '
                             'files of the training run.')
        return labels


def _in_order(labels):
    """Sorts labels: by value if all are integers, else as texts."""
    try:
        return sorted(labels, key=int)
    except ValueError:
        return sorted(labels)
