"""Batches of texts and their classes for KerasHub's text classifiers."""

import tensorflow as tf

from lingpipe import hyperparams, spelling
from lingpipe.input import record_fields, record_input, text_records


class TextClassificationInput(record_input.RecordInput):
    """Texts with a label, made into tensors by the KerasHub preprocessor for the tokenizer.

    ::

        {"text": "Fine.", "label": "good"} -> <s> F ine . </s> <pad> <pad>    class 1 of ['bad', 'good'], weight 1

    The preprocessor cuts longer texts at `sequence_length`. It works on the rows of this process alone, while they are
    trained on.

    Attributes:
        input_spec: dictionary of the `tf.TensorSpec` of the tensors that the preprocessor makes.
        example_name: what an example is called.
        class_names: names of the classes in the order of their numbers.
        num_classes: number of classes.
    """

    example_name = 'texts'

    @classmethod
    def Params(cls) -> hyperparams.InstantiableParams:
        """Returns the InstantiableParams of this input; see `RecordInput.Params`."""
        p = super().Params().Set(name='text_classification_input')
        p.Define('text_field', 'text', 'Field of the text.')
        p.Define('label_field', 'label', "Field of the name of the class, a text or an integer; 'label' of text "
                                         'folders is the name of the folder.')
        p.Define('class_names', None, 'Names of the classes in the order of their numbers; None: those of the TFDS '
                                      'feature, else the labels of class_files, sorted (by value if all are integers).')
        p.Define('class_files', None, 'Files, as `files`, whose labels are the classes; None: `files`, in training '
                                      'alone. Evaluation needs those of the training.')
        return p

    @staticmethod
    def InputSpec(params: hyperparams.Params) -> dict[str, tf.TensorSpec]:
        """Returns the dictionary of the `tf.TensorSpec` `[batch_size, sequence_length]`; reads no records.

        Args:
            params: `TextClassificationInput.Params()`.
        """
        shape = [params.batch_size, params.sequence_length]
        return {name: tf.TensorSpec(shape, tf.bool if name == 'padding_mask' else tf.int32)
                for name in params.tokenizer.cls.ClassifierFeatures(params.tokenizer)}

    @staticmethod
    def TargetSpec(params: hyperparams.Params) -> tuple[tf.TensorSpec, tf.TensorSpec]:
        """Returns the pair of the `tf.TensorSpec` of labels and weights `[batch_size]`; reads no records."""
        return tf.TensorSpec([params.batch_size], tf.int32), tf.TensorSpec([params.batch_size], tf.float32)

    def __init__(self, params: hyperparams.Params) -> None:
        super().__init__(params)
        p = self.params
        self.input_spec = self.InputSpec(p)
        self._preprocessor = self.tokenizer.classifier_preprocessor(p.sequence_length)
        self.class_names = self._given_class_names()
        self._has_own_classes = self.class_names is None
        records = self._read([p.text_field, p.label_field, p.weight_field], self._row)
        self._warn_of_bad_records()
        texts, labels, weights = zip(*(row for _, row in records))
        if self._has_own_classes:
            self.class_names = _in_order(set(labels))
        self.num_classes = len(self.class_names)
        numbers = {name: number for number, name in enumerate(self.class_names)}
        with tf.device('CPU:0'):
            self._columns = (
                tf.constant(texts), tf.constant([numbers[label] for label in labels], tf.int32),
                tf.constant(weights, tf.float32))

    def evaluation_dataset(self) -> tf.data.Dataset:
        """Returns every text once; see `RecordInput.evaluation_dataset`.

        Raises:
            ValueError: the classes were read from these very records, which may lack some.
        """
        if self._has_own_classes:
            raise ValueError(f'class_names: the classes {self.class_names} were read from the records to be evaluated, '
                             'so their numbers may not be those of the training. Set class_names, or class_files to '
                             'the files of the training.')
        return super().evaluation_dataset()

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
        """Bad records are left out: they are named where these files are trained on."""
        p, labels = self.params, set()
        for record in text_records.from_files(p.class_files, p.format, p.csv_columns):
            try:
                labels.add(record_fields.label(record, p.label_field))
            except record_fields.BadRecord:
                continue
        if not labels:
            raise ValueError(f'class_files: {p.class_files!r} holds no label in the field {p.label_field!r}. Give the '
                             'files of the training.')
        return labels

    def _row(self, record):
        p = self.params
        label = record_fields.label(record, p.label_field)
        if self.class_names is not None and label not in self.class_names:
            raise record_fields.BadRecord(f'field {p.label_field!r}: {label!r} is no class'
                                          f'{spelling.did_you_mean(label, self.class_names)}')
        return record_fields.text(record, p.text_field), label, record_fields.weight(record, p.weight_field)

    def _batch(self, columns, is_row):
        texts, labels, weights = columns
        features = self._preprocessor(texts)
        shape = [labels.shape[0], self.params.sequence_length]
        inputs = {name: tf.ensure_shape(tf.cast(features[name], spec.dtype), shape)
                  for name, spec in self.input_spec.items()}
        return inputs, labels, weights * tf.cast(is_row, tf.float32)


def _in_order(labels):
    """Sorts labels: by value where all are integers, else as texts."""
    try:
        return sorted(labels, key=int)
    except ValueError:
        return sorted(labels)
