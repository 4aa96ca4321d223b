"""Inputs of texts for KerasHub models: instructions, pairs of texts, and labelled texts."""

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from lingpipe import hyperparams, wording
from lingpipe.input import text_input, text_records

_PROMPT = '{prompt}'
_SIDES = ('encoder', 'decoder')


class InstructionInput(text_records.RecordInput):
    """Prompts with responses, one pair per row. The loss counts only tokens that the model has to write.

    ::

        token_ids      <s> 2 + 2 = 4 </s> .       prompt '2 + 2 =', response ' 4', padding '.'
        labels         2 + 2 = 4 </s> . .
        weights        0 0 0 0 1 1    0 0
        padding_mask   1 1 1 1 1 1 1  0

    Prompt and response are tokenized separately, as in generation. Overlong responses are truncated. If a prompt leaves
    no room for a response, the pair is left out. A warning counts truncated responses and left-out pairs. With
    `text_field`, an overlong text continues in further rows. Everything is tokenized when the input is created.
    """

    example_name = 'rows'

    @classmethod
    def Params(cls) -> hyperparams.InstantiableParams:
        p = super().Params().Set(name='instruction_input')
        p.Define('prompt_field', 'prompt', 'Field of what the model is told, which has loss weight 0.')
        p.Define('response_field', 'response', 'Field of what the model should answer, which has loss weight 1.')
        p.Define('text_field', None, 'Field of a plain text, instead of prompt and response; all of it has loss '
                                     'weight 1.')
        p.Define('prompt_template', _PROMPT, f'What the model is shown for a prompt, which replaces {_PROMPT!r} in it.')
        p.Define('has_padding_mask', True, "Whether inputs are a dictionary of 'token_ids' and a 'padding_mask', as "
                                           'models of KerasHub take them.')
        return p

    InputSpec = staticmethod(text_input.TextInput.InputSpec)
    TargetSpec = staticmethod(text_input.TextInput.TargetSpec)

    @property
    def _fields(self):
        return ('text_field',) if self.params.text_field else ('prompt_field', 'response_field')

    def _arrays(self, records):
        p = self.params
        responses = [record.text(p.text_field or p.response_field) for record in records]
        prompts = [self._prompt(record) for record in records]
        pairs = zip(self._tokenized(prompts), self._tokenized(responses), strict=True)
        found = [row for pair in pairs for row in self._rows_of(*pair)]
        num_left_out = 0 if p.text_field else len(records) - len(found)
        num_cut = 0 if p.text_field else sum(len(tokens) > p.sequence_length + 1 for tokens, _ in found)
        if num_cut or num_left_out:
            logging.warning('%s: sequence_length=%d cuts %d responses, and leaves out %d prompts without room for one.',
                            self.source, p.sequence_length, num_cut, num_left_out)
        if not found:
            raise ValueError(f'sequence_length: {p.sequence_length} has no room for any response of {self.source}. '
                             'Raise it.')
        rows = [tokens[:p.sequence_length + 1] for tokens, _ in found]
        tokens = keras.utils.pad_sequences(rows, p.sequence_length + 1, padding='post', value=self.tokenizer.pad_id)
        return tokens, np.array(list(map(len, rows)), np.int32), np.array([shown for _, shown in found], np.int32)

    def _prompt(self, record):
        """Return the prompt of a record, or '' if the record is a plain text."""
        p = self.params
        return '' if p.text_field else p.prompt_template.replace(_PROMPT, record.text(p.prompt_field))

    def _rows_of(self, prompt, response):
        """Return the tokens of each row, and how many leading tokens have no loss."""
        shown, length = [*self.tokenizer.start_ids, *prompt], self.params.sequence_length
        tokens = [*shown, *response, self.tokenizer.end_id]
        if self.params.text_field:  # each row begins with the last token of the previous one, so none is lost
            return [(tokens[start:start + length + 1], 1) for start in range(0, len(tokens) - 1, length)]
        return [(tokens, len(shown))] if len(shown) <= length else []

    def _batch(self, tokens, num_tokens, num_shown):
        inputs, labels = tokens[:, :-1], tokens[:, 1:]
        num_tokens, num_shown = num_tokens[:, tf.newaxis], num_shown[:, tf.newaxis]
        places = tf.range(self.params.sequence_length)
        weights = tf.cast((places + 1 >= num_shown) & (places + 1 < num_tokens), tf.float32)
        if self.params.has_padding_mask:
            inputs = {'token_ids': inputs, 'padding_mask': places < num_tokens}
        return inputs, labels, weights, self.tokenizer.num_bytes(labels)

    def _check_params(self):
        super()._check_params()
        if _PROMPT not in self.params.prompt_template:
            raise ValueError(f'prompt_template: {self.params.prompt_template!r} has no {_PROMPT!r}, which stands for '
                             'the prompt. Write it in.')


class SequenceToSequenceInput(text_records.RecordInput):
    """Pairs of texts. The KerasHub preprocessor of the tokenizer converts the texts to tensors, as for BART::

        encoder_token_ids   <s> forty - two </s> <pad>     the source
        decoder_token_ids   </s> <s> 4 2 </s> <pad>        the token before each label
        labels              <s> 4 2 </s> <pad> <pad>
        weights             1 1 1 1 0 0

    Overlong texts are truncated. Warnings count the texts that fill a whole row. Everything is tokenized when the input
    is created.
    """

    example_name = 'pairs'
    _fields = 'source_field', 'target_field'

    @classmethod
    def Params(cls) -> hyperparams.InstantiableParams:
        """Return the InstantiableParams of this input. `sequence_length` is the number of tokens per source."""
        p = super().Params().Set(name='sequence_to_sequence_input')
        p.Define('source_field', 'source', 'Field of the text that the model reads.')
        p.Define('target_field', 'target', 'Field of the text that it should write.')
        p.Define('target_length', None, 'Number of tokens in a row of targets; None: as in one of sources.')
        return p

    @staticmethod
    def InputSpec(params: hyperparams.Params) -> dict[str, tf.TensorSpec]:
        """Return encoder specs, `[batch_size, sequence_length]`, and decoder specs, `[batch_size, target_length]`."""
        shapes = {side: [params.batch_size, length] for side, length in zip(_SIDES, _lengths(params))}
        return {f'{side}_{name}': tf.TensorSpec(shape, dtype) for side, shape in shapes.items()
                for name, dtype in (('padding_mask', tf.bool), ('token_ids', tf.int32))}

    @staticmethod
    def TargetSpec(params: hyperparams.Params) -> tuple[tf.TensorSpec, ...]:
        """Return the specs of labels, weights and byte counts, each `[batch_size, target_length]`. Read no records."""
        shape = [params.batch_size, _lengths(params)[1]]
        return tuple(tf.TensorSpec(shape, dtype) for dtype in (tf.int32, tf.float32, tf.float32))

    def _arrays(self, records):
        """Return arrays in the order of `input_spec`, then labels and weights, all with one row per pair."""
        p = self.params
        source_length, target_length = _lengths(p)
        preprocessor = self.tokenizer.preprocessor(
            'Seq2SeqLMPreprocessor', encoder_sequence_length=source_length, decoder_sequence_length=target_length)
        sources, targets = ([record.text(field) for record in records] for field in (p.source_field, p.target_field))
        inputs, labels, mask = text_records.by_pieces(lambda some: preprocessor(
            {'encoder_text': sources[some], 'decoder_text': targets[some]}), len(records))
        for side, is_token in (('sources', inputs['encoder_padding_mask']), ('targets', mask)):
            num_full = np.count_nonzero(is_token.all(1))
            if num_full:
                logging.warning('%d %s of %s fill all %d tokens of a row, and what does not fit is cut off.',
                                num_full, side, self.source, is_token.shape[1])
        return *(inputs[name] for name in self.input_spec), labels, mask.astype(np.float32)

    def _batch(self, *columns):
        *inputs, labels, weights = columns
        inputs = {name: tf.cast(part, spec.dtype) for (name, spec), part in zip(self.input_spec.items(), inputs)}
        return inputs, labels, weights, self.tokenizer.num_bytes(labels)

    def _check_params(self):
        super()._check_params()
        if self.params.target_length is not None:
            self._check_at_least(target_length=1)
        cls = self.params.tokenizer.cls
        if not hasattr(cls, 'preprocessor'):
            raise ValueError(f'tokenizer: {cls.__name__} belongs to no sequence-to-sequence model of KerasHub. Set it '
                             'to the params of a KerasHubTokenizer, or of a BytePairTokenizer with '
                             "keras_hub_class='BartTokenizer'.")


def _lengths(params):
    return params.sequence_length, params.target_length or params.sequence_length


class TextClassificationInput(text_records.RecordInput):
    """Texts with a label. The KerasHub preprocessor of the tokenizer converts the texts to tensors.

    ::

        {"text": "Fine.", "label": "good"} -> <s> F ine . </s> <pad> <pad>    class 1 of ['bad', 'good'], weight 1

    The preprocessor truncates longer texts to `sequence_length`. Everything is tokenized when the input is created.
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
        """Return the dictionary of input specs, each `[batch_size, sequence_length]`. Read no records."""
        cls = params.tokenizer.cls
        if not hasattr(cls, 'ClassifierFeatures'):
            raise ValueError(f'tokenizer: {cls.__name__} belongs to no encoder of KerasHub. Set it to the params of a '
                             "KerasHubTokenizer, or of a BytePairTokenizer with keras_hub_class='RobertaTokenizer'.")
        shape = [params.batch_size, params.sequence_length]
        return {name: tf.TensorSpec(shape, tf.bool if name == 'padding_mask' else tf.int32)
                for name in cls.ClassifierFeatures(params.tokenizer)}

    @staticmethod
    def ClassNames(params: hyperparams.Params) -> list[str]:
        """Return the class names."""
        names = params.class_names  # not from the records, which may lack a class
        if names is None and params.dataset:
            names = text_records.class_names_of_tfds(params.dataset, params.data_dir, params.label_field)
        is_list = isinstance(names, (list, tuple)) and all(isinstance(name, str) for name in names)
        if not is_list or len(set(names)) < len(names):
            raise ValueError(f'class_names: {names!r} is not a list of different names. Write it like '
                             "['negative', 'positive'].")
        return list(names)

    @staticmethod
    def FileBatches(params: hyperparams.Params, files: str) -> tuple[int, tf.data.Dataset]:
        """Make batches of texts from files of records. No labels are needed. See `BaseInput`."""
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
                               f'{wording.did_you_mean(label, self.class_names)}')
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
