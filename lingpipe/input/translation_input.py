"""Batches of sentences and their translations, from any translation dataset of TFDS."""

import functools

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds
from absl import logging

from lingpipe import hyperparams, wording
from lingpipe.input import base_input, text_input, tfds_builders


def chosen_languages(dataset: str, data_dir: str | None = None, source_language: str | None = None,
                     target_language: str | None = None) -> tuple[str, str]:
    """Return the source language and the target language. Raise ValueError if the dataset or a language is unknown.

    By default, the languages are the supervised keys of the dataset. No data are prepared.
    """
    info = tfds_builders.find_builder(dataset, data_dir).info
    if not isinstance(info.features, tfds.features.Translation):
        raise ValueError(f'dataset: {dataset!r} has no feature that is a tfds.features.Translation; '
                         f'{wording.what_there_is("translation", info.features)}. Choose a dataset of translations.')
    # TFDS sorts the languages by name, and only the supervised keys give the direction.
    names, keys = list(info.features.languages), info.supervised_keys or ()
    known = [key for key in keys if key in names] + [language for language in names if language not in keys]
    source = source_language or next(language for language in known if language != target_language)
    target = target_language or next(language for language in known if language != source)
    if source == target or source not in known or target not in known:
        raise ValueError(f'source_language and target_language: {source!r} and {target!r} are not two of the languages '
                         f'{known} of the dataset. Set them to two of these.')
    return source, target


class TranslationInput(text_input.TokenizedInput):
    """Pairs of sentences of a TFDS dataset, tokenized, padded to fixed lengths and batched.

    ::

        source   w o r d s 0 0 0        padding is the tokenizer's end_id
        target   0 1 2 0 0 0            the token before each label
        labels   1 2 0 0 0 0            ended by end_id
        weights  1 1 1 0 0 0

    All batches have the same shape, because accelerators compile each shape separately. Training leaves out pairs with
    an empty or overlong sentence. Evaluation keeps all pairs, and truncates overlong sentences.
    """

    example_name = 'pairs'

    @classmethod
    def Params(cls) -> hyperparams.InstantiableParams:
        """Return the InstantiableParams of this input. `dataset` may be 'wmt14_translate/de-en', for example."""
        p = super().Params().Set(name='translation_input', dataset='spoken_numbers', batch_size=64)
        p.Define('source_language', None, "Language to translate from; None: the first of the dataset's keys.")
        p.Define('target_language', None, "Language to translate into; None: the second of them.")
        p.Define('source_length', 128, 'Number of tokens that a source is filled up to.')
        p.Define('target_length', 128, 'Number of tokens that a target, with its end, is filled up to.')
        return p

    @staticmethod
    def InputSpec(params: hyperparams.Params) -> dict[str, tf.TensorSpec]:
        """Return the specs of the tokens 'source' and 'target', as a dictionary. Prepare no data."""
        return {'source': tf.TensorSpec([params.batch_size, params.source_length], tf.int32),
                'target': tf.TensorSpec([params.batch_size, params.target_length], tf.int32)}

    @staticmethod
    def TargetSpec(params: hyperparams.Params) -> tuple[tf.TensorSpec, tf.TensorSpec]:
        """Return the specs of labels and weights, both `[batch_size, length]`. Prepare no data."""
        shape = [params.batch_size, params.target_length]
        return tf.TensorSpec(shape, tf.int32), tf.TensorSpec(shape, tf.float32)

    def __init__(self, params: hyperparams.Params) -> None:
        self._languages = chosen_languages(
            params.dataset, params.data_dir, params.source_language, params.target_language)
        super().__init__(params)

    @base_input.without_autograph
    def evaluation_dataset(self) -> tf.data.Dataset:
        """Return every pair once, in stored order. Pairs of weight 0 pad the last batch."""
        batches = self._tokenized().map(self._row).batch(self.params.batch_size)
        return self._finish(base_input.filled_up(batches, self.params.batch_size).map(self._batch))

    @functools.cached_property
    def _columns(self):
        """All pairs of suitable length, as a list of four tensors: sources, targets, labels and weights."""
        logging.info('Loading %d pairs of %s into memory.', self._data.num_examples, self.params.dataset)
        batches = list(self._cut(self._tokenized()).map(self._row).batch(1024).as_numpy_iterator())
        if not batches:
            p = self.params
            raise ValueError(f'source_length: {p.source_length} and target_length: {p.target_length} are too short for '
                             f'every pair of split {p.split!r} of {p.dataset!r}. Make them longer.')
        with tf.device('CPU:0'):
            return [tf.constant(np.concatenate(part)) for part in zip(*batches)]

    def _tokens(self, example):
        source, target = (self.tokenizer.encode(example[language]) for language in self._languages)
        return source, target

    def _cut(self, pairs):
        """Leave out pairs in which a sentence is empty or too long."""
        return pairs.filter(self._fits)

    def _fits(self, source, target):
        is_full = (tf.size(source) > 0) & (tf.size(target) > 0)
        return is_full & (tf.size(source) <= self.params.source_length) & (tf.size(target) < self.params.target_length)

    def _row(self, source, target):
        """Return source, target, labels and weights of one pair."""
        p, end = self.params, self.tokenizer.end_id
        target = target[:p.target_length - 1]
        labels = _filled(target, p.target_length, end)
        weights = tf.cast(tf.range(p.target_length) <= tf.size(target), tf.float32)
        return _filled(source, p.source_length, end), tf.concat([[end], labels[:-1]], 0), labels, weights

    def _batch(self, source, target, *targets):
        return {'source': source, 'target': target}, *targets

    def _check_params(self):
        super()._check_params()
        self._check_at_least(source_length=1, target_length=2)


def _filled(tokens, length, padding):
    tokens = tokens[:length]
    return tf.ensure_shape(tf.pad(tokens, [[0, length - tf.size(tokens)]], constant_values=padding), [length])
