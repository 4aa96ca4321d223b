"""Transformer language models: the default on the help texts of Python, and the giants of GPipe's paper."""

import keras

from lingpipe import base_model_params, model_registry
from lingpipe.input import text_input
from lingpipe.layers import keras_params, transformer
from lingpipe.models import language_model


@model_registry.RegisterSingleTaskModel
class PydocBytes(base_model_params.SingleTaskModelParams):
    """A byte-level language model of the Python interpreter's help texts: trains in minutes on two CPU cores."""

    NUM_PARTITIONS = 2
    NUM_MICRO_BATCHES = 8
    BATCH_SIZE = 16
    SEQUENCE_LENGTH = 256
    MAX_STEPS = 800
    WARMUP_STEPS = 100

    def _Input(self, split):
        return text_input.TextInput.Params().Set(
            name=f'pydoc_topics_{split}', dataset='pydoc_topics', split=split, batch_size=self.BATCH_SIZE,
            sequence_length=self.SEQUENCE_LENGTH)

    def Train(self):
        return self._Input('train')

    def _HeldOut(self, split):
        return self._Input(split).Set(evaluation_context=self.SEQUENCE_LENGTH // 2)

    def Dev(self):
        return self._HeldOut('dev')

    def Test(self):
        return self._HeldOut('test')

    def Task(self):
        p = language_model.LanguageModel.Params().Set(name='pydoc_bytes')
        p.body.Set(
            num_partitions=self.NUM_PARTITIONS, num_micro_batches=self.NUM_MICRO_BATCHES, recompute='none',
            layers=transformer.transformer_lm_layers(
                num_layers=4, vocab_size=256, model_dim=128, hidden_dim=512, num_heads=4, positions='rotary',
                residual_dropout_prob=0.1, relu_dropout_prob=0.1))
        p.train.Set(
            max_steps=self.MAX_STEPS, clip_gradient_norm_to_value=1.0,
            optimizer=keras_params.KerasParams(keras.optimizers.AdamW, weight_decay=0.1, beta_2=0.98),
            lr_schedule=keras_params.KerasParams(
                keras.optimizers.schedules.CosineDecay, initial_learning_rate=0.0, warmup_target=3e-3,
                warmup_steps=self.WARMUP_STEPS, decay_steps=self.MAX_STEPS - self.WARMUP_STEPS),
            save_interval_seconds=60.0, summary_interval_steps=20)
        p.eval.Set(interval_steps=200)
        return p


class _Published(base_model_params.SingleTaskModelParams):
    """Transformer-L of GPipe (arXiv 1811.06965, table 1) on the One Billion Word benchmark.

    The paper gives sizes and the batch. The optimizer and its 4,000 warm-up steps are those of arXiv 1706.03762,
    section 5.3. The cosine decay after them is ours.
    """

    NUM_LAYERS = 3
    NUM_PARTITIONS = 1
    NUM_MICRO_BATCHES = 32
    RECOMPUTE = 'layer'
    MODEL_DIM = 2048
    HIDDEN_DIM = 8192
    NUM_HEADS = 32
    VOCAB_SIZE = 32_000
    SEQUENCE_LENGTH = 1024
    BATCH_SIZE = 32

    def _Input(self, split):
        return text_input.TextInput.Params().Set(
            name=f'lm1b_{split}', dataset='lm1b', split=split, batch_size=self.BATCH_SIZE,
            sequence_length=self.SEQUENCE_LENGTH)

    def Train(self):
        return self._Input('train')

    def Test(self):
        return self._Input('test')

    def Task(self):
        p = language_model.LanguageModel.Params().Set(name=f'transformer_{self.NUM_LAYERS}', label_smoothing=0.1)
        p.body.Set(
            num_partitions=self.NUM_PARTITIONS, num_micro_batches=self.NUM_MICRO_BATCHES, recompute=self.RECOMPUTE,
            layers=transformer.transformer_lm_layers(
                self.NUM_LAYERS, self.VOCAB_SIZE, self.MODEL_DIM, self.HIDDEN_DIM, self.NUM_HEADS,
                input_dropout_prob=0.1, residual_dropout_prob=0.1, relu_dropout_prob=0.1))
        p.train.Set(
            max_steps=100_000, clip_gradient_norm_to_value=1.0,
            optimizer=keras_params.KerasParams(keras.optimizers.Adam, beta_2=0.98, epsilon=1e-9),
            lr_schedule=keras_params.KerasParams(
                keras.optimizers.schedules.CosineDecay, initial_learning_rate=0.0, warmup_target=3e-4,
                warmup_steps=4000, decay_steps=96_000))
        p.eval.Set(interval_steps=5000)
        return p


@model_registry.RegisterSingleTaskModel
class Transformer3(_Published):
    """Transformer-3, 282.2M parameters: GPipe's table 1, the largest for one device without GPipe."""

    RECOMPUTE = 'stage'


@model_registry.RegisterSingleTaskModel
class Transformer13(_Published):
    """Transformer-13, 785.8M parameters: GPipe's table 1, one device with recomputation."""

    NUM_LAYERS = 13


@model_registry.RegisterSingleTaskModel
class Transformer103(_Published):
    """Transformer-103, 5.3B parameters: GPipe's table 1, eight partitions."""

    NUM_LAYERS = 103
    NUM_PARTITIONS = 8


@model_registry.RegisterSingleTaskModel
class Transformer157(_Published):
    """Transformer-157, 8.0B parameters: the size that GPipe's announcement names for 16 cores of a TPU v3."""

    NUM_LAYERS = 157
    NUM_PARTITIONS = 16


@model_registry.RegisterSingleTaskModel
class Transformer415(_Published):
    """Transformer-415, 21.0B parameters: GPipe's table 1, 32 partitions."""

    NUM_LAYERS = 415
    NUM_PARTITIONS = 32


@model_registry.RegisterSingleTaskModel
class Transformer1663(_Published):
    """Transformer-1663, 83.9B parameters: GPipe's table 1, 128 partitions."""

    NUM_LAYERS = 1663
    NUM_PARTITIONS = 128


DEFAULT = PydocBytes
