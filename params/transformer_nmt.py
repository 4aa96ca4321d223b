"""Transformers that translate: the default from spoken numbers to digits, and the giants of GPipe's paper."""

import keras

from lingpipe import base_model_params, model_registry
from lingpipe.input import translation_input
from lingpipe.layers import keras_params, translation
from lingpipe.models import translation_model


@model_registry.RegisterSingleTaskModel
class SpokenNumbers(base_model_params.SingleTaskModelParams):
    """From 'four hundred and seven thousand and twelve' to '407012' by letters; trains in minutes on two CPU cores."""

    NUM_PARTITIONS = 2
    NUM_MICRO_BATCHES = 4
    BATCH_SIZE = 128
    SOURCE_LENGTH = 80
    TARGET_LENGTH = 7
    MAX_STEPS = 800
    WARMUP_STEPS = 100

    def _Input(self, split):
        return translation_input.TranslationInput.Params().Set(
            name=f'spoken_numbers_{split}', dataset='spoken_numbers', split=split, batch_size=self.BATCH_SIZE,
            source_length=self.SOURCE_LENGTH, target_length=self.TARGET_LENGTH)

    def Train(self):
        return self._Input('train')

    def Test(self):
        return self._Input('test')

    def Task(self):
        p = translation_model.TranslationModel.Params().Set(
            name='spoken_numbers', sample_source='four hundred and seven thousand and twelve')
        p.body.Set(
            num_partitions=self.NUM_PARTITIONS, num_micro_batches=self.NUM_MICRO_BATCHES, recompute='none',
            layers=translation.transformer_nmt_layers(
                num_layers=2, vocab_size=256, model_dim=64, hidden_dim=256, num_heads=4))
        p.train.Set(
            max_steps=self.MAX_STEPS, clip_gradient_norm_to_value=1.0,
            optimizer=keras_params.KerasParams(keras.optimizers.Adam, beta_2=0.98),
            lr_schedule=keras_params.KerasParams(
                keras.optimizers.schedules.CosineDecay, initial_learning_rate=0.0, warmup_target=3e-3,
                warmup_steps=self.WARMUP_STEPS, decay_steps=self.MAX_STEPS - self.WARMUP_STEPS),
            save_interval_seconds=60.0, summary_interval_steps=20)
        p.eval.Set(interval_steps=200)
        return p


class _Published(base_model_params.SingleTaskModelParams):
    """T(L, H, A) of GPipe (arXiv 1811.06965, section 5): L encoder and L decoder layers, H hidden units, A heads.

    The paper's 25 billion text pairs in 103 languages are not public, so this model reads German and English. The
    paper gives sizes and partitions; its parameter counts imply heads of size 64. The optimizer and its 4,000 warm-up
    steps are from arXiv 1706.03762, section 5.3. The cosine decay after these and the logit limit are ours.
    """

    NUM_LAYERS = 6
    HIDDEN_DIM = 8192
    NUM_HEADS = 16
    DIM_PER_HEAD = 64
    NUM_PARTITIONS = 1
    NUM_MICRO_BATCHES = 32
    MODEL_DIM = 1024
    VOCAB_SIZE = 64_000
    SEQUENCE_LENGTH = 256
    BATCH_SIZE = 128

    def _Input(self, split):
        return translation_input.TranslationInput.Params().Set(
            name=f'wmt14_{split}', dataset='wmt14_translate/de-en', split=split, batch_size=self.BATCH_SIZE,
            source_language='de', target_language='en', source_length=self.SEQUENCE_LENGTH,
            target_length=self.SEQUENCE_LENGTH)

    def Train(self):
        return self._Input('train')

    def Dev(self):
        return self._Input('validation')

    def Test(self):
        return self._Input('test')

    def Task(self):
        name = f'transformer_nmt_{self.NUM_LAYERS}_{self.HIDDEN_DIM}_{self.NUM_HEADS}'
        p = translation_model.TranslationModel.Params().Set(name=name, label_smoothing=0.1)
        p.body.Set(
            num_partitions=self.NUM_PARTITIONS, num_micro_batches=self.NUM_MICRO_BATCHES,
            layers=translation.transformer_nmt_layers(
                self.NUM_LAYERS, self.VOCAB_SIZE, self.MODEL_DIM, self.HIDDEN_DIM, self.NUM_HEADS,
                dim_per_head=self.DIM_PER_HEAD, logits_abs_max=30.0, input_dropout_prob=0.1, residual_dropout_prob=0.1,
                relu_dropout_prob=0.1))
        p.train.Set(
            max_steps=300_000, clip_gradient_norm_to_value=1.0,
            optimizer=keras_params.KerasParams(keras.optimizers.Adam, beta_2=0.98, epsilon=1e-9),
            lr_schedule=keras_params.KerasParams(
                keras.optimizers.schedules.CosineDecay, initial_learning_rate=0.0, warmup_target=3e-4,
                warmup_steps=4000, decay_steps=296_000))
        p.eval.Set(interval_steps=5000)
        return p


@model_registry.RegisterSingleTaskModel
class T6H8192A16(_Published):
    """T(6, 8192, 16), 400M parameters: GPipe's baseline, on one device."""


@model_registry.RegisterSingleTaskModel
class T24H8192A16(_Published):
    """T(24, 8192, 16), 1.3B parameters: the deep one of GPipe's pair, four partitions."""

    NUM_LAYERS = 24
    NUM_PARTITIONS = 4


@model_registry.RegisterSingleTaskModel
class T12H16384A32(_Published):
    """T(12, 16384, 32), 1.3B parameters: the wide one of GPipe's pair, two partitions."""

    NUM_LAYERS = 12
    HIDDEN_DIM = 16_384
    NUM_HEADS = 32
    NUM_PARTITIONS = 2


@model_registry.RegisterSingleTaskModel
class T32H16384A32(T12H16384A32):
    """T(32, 16384, 32), 3B parameters, eight partitions."""

    NUM_LAYERS = 32
    NUM_PARTITIONS = 8


@model_registry.RegisterSingleTaskModel
class T64H16384A32(T12H16384A32):
    """T(64, 16384, 32), 6B parameters, 16 partitions."""

    NUM_LAYERS = 64
    NUM_PARTITIONS = 16


DEFAULT = SpokenNumbers
