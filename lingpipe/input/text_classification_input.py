"""Batches of texts and their classes for KerasHub's text classifiers."""

import numpy as np
import tensorflow as tf

from lingpipe import hyperparams, spelling
from lingpipe.input import text_records


class TextClassificationInput(text_records.RecordInput):
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
        p.Define('label_field', 'label', 'Field of the label: the name of a class, a text or an integer.')
        p.Define('class_names', None, 'Names of the classes in the order of their numbers; None: as in the TFDS '
                                      'feature.')
        return p

    @staticmethod
    def InputSpec(params: hyperparams.Params) -> dict[str, tf.TensorSpec]:
        """Return the dictionary of the inputs' `tf.TensorSpec`s, all `[batch_size, sequence_length]`; read no records.

        Raises:
            ValueError: the tokenizer does not belong to an encoder.
        """
        cls = params.tokenizer.cls
        if not hasattr(cls, 'ClassifierFeatures'):
            raise ValueError(f'tokenizer: {cls.__name__} belongs to no encoder of KerasHub. Set it to the params of a '
                             "KerasHubTokenizer, or of a BytePairTokenizer with keras_hub_class='RobertaTokenizer'.")
        shape = [params.batch_size, params.sequence_length]
        return {name: tf.TensorSpec(shape, tf.bool if name == 'padding_mask' else tf.int32)
                for name in cls.ClassifierFeatures(params.tokenizer)}

    @staticmethod
    def ClassNames(params: hyperparams.Params) -> list[str]:
        """Return the names of the classes; see `BaseInput`.

        Raises:
            ValueError: nothing names the classes; the records of one input may lack some.
        """
        names = params.class_names
        if names is None and params.dataset:
            names = text_records.class_names_of_tfds(params.dataset, params.data_dir, params.label_field)
        is_list = isinstance(names, (list, tuple)) and all(isinstance(name, str) for name in names)
        if not is_list or len(set(names)) < len(names):
            raise ValueError(f'class_names: {names!r} is not a list of different names. Write it like '
                             "['negative', 'positive'].")
        return list(names)

    @staticmethod
    def FileBatches(params: hyperparams.Params, files: str) -> tuple[int, tf.data.Dataset]:
        """Make batches of texts from files of records, which need no label; see `BaseInput`."""
        records = list(text_records.from_files(files))
        if not records:
            raise ValueError(f'files: {files!r} holds no record. Give files with records.')
        features = _features(params, params.tokenizer.Instantiate(), records)
        rows = features, [record.place for record in records], [''] * len(records)
        return len(records), tf.data.Dataset.from_tensor_slices(rows).batch(params.batch_size)

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    def _arrays(self, records):
        self.class_names = self.ClassNames(self.params)
        numbers = np.array([self._class_number(record) for record in records], np.int32)
        return *_features(self.params, self.tokenizer, records).values(), numbers

    def _class_number(self, record):
        field = self.params.label_field
        label = record.label(field)
        if label not in self.class_names:
            raise record.error(f'field {field!r}: {label!r} is not a class'
                               f'{spelling.did_you_mean(label, self.class_names)}')
        return self.class_names.index(label)

    def _batch(self, *columns):
        *features, labels = columns
        return dict(zip(self.input_spec, features)), labels, tf.ones(tf.shape(labels))


def _features(p, tokenizer, records):
    """Return the tensors of `InputSpec` for all records."""
    texts = [record.text(p.text_field) for record in records]
    preprocessor = tokenizer.preprocessor('TextClassifierPreprocessor', sequence_length=p.sequence_length)
    features = text_records.by_pieces(lambda some: preprocessor(texts[some]), len(texts))
    return {name: features[name].astype(spec.dtype.as_numpy_dtype)
            for name, spec in TextClassificationInput.InputSpec(p).items()}
