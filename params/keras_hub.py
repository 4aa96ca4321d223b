"""Language models of KerasHub that need no network."""

import keras

from lingpipe import base_model_params, model_registry
from lingpipe.input import hub_inputs, text_input, tokenization
from lingpipe.keras_graph import hub_model
from lingpipe.layers import keras_params
from lingpipe.models import language_model


class _SmallHubModel(base_model_params.SingleTaskModelParams):
    """The common part of these models: two partitions, and a training run of minutes with warm-up and decay."""

    NUM_PARTITIONS = 2
    NUM_MICRO_BATCHES = 4
    MAX_STEPS = 600
    WARMUP_STEPS = 60
    LEARNING_RATE = 1e-3

    def Train(self):
        return self._Input('train')

    def Test(self):
        return self._Input('test')

    def _SetBody(self, body, **model_fields):
        body.Set(num_partitions=self.NUM_PARTITIONS, num_micro_batches=self.NUM_MICRO_BATCHES, recompute='none')
        body.model = hub_model.KerasHubModel.Params().Set(**model_fields)

    def _SetTraining(self, p, optimizer):
        p.train.Set(
            max_steps=self.MAX_STEPS, clip_gradient_norm_to_value=1.0, optimizer=optimizer,
            lr_schedule=keras_params.KerasParams(
                keras.optimizers.schedules.CosineDecay, initial_learning_rate=0.0, warmup_target=self.LEARNING_RATE,
                warmup_steps=self.WARMUP_STEPS, decay_steps=self.MAX_STEPS - self.WARMUP_STEPS),
            save_interval_seconds=60.0, summary_interval_steps=20)
        p.eval.Set(interval_steps=200)


@model_registry.RegisterSingleTaskModel
class PydocGPTNeoX(_SmallHubModel):
    """A small GPT-NeoX of KerasHub on the Python interpreter's help texts, with byte pairs learnt from them."""

    BATCH_SIZE = 16
    SEQUENCE_LENGTH = 128
    VOCAB_SIZE = 1024
    MAX_STEPS = 1000
    WARMUP_STEPS = 100
    LEARNING_RATE = 3e-3

    def _Input(self, split):
        tokenizer = tokenization.BytePairTokenizer.Params().Set(
            dataset='pydoc_topics', vocab_size=self.VOCAB_SIZE, keras_hub_class='GPTNeoXTokenizer')
        return text_input.TextInput.Params().Set(
            name=f'pydoc_topics_{split}', dataset='pydoc_topics', split=split, batch_size=self.BATCH_SIZE,
            sequence_length=self.SEQUENCE_LENGTH, tokenizer=tokenizer, has_padding_mask=True)

    def _HeldOut(self, split):
        return self._Input(split).Set(evaluation_context=self.SEQUENCE_LENGTH // 2)

    def Dev(self):
        return self._HeldOut('dev')

    def Test(self):
        return self._HeldOut('test')

    def Task(self):
        p = language_model.LanguageModel.Params().Set(name='pydoc_gpt_neo_x')
        self._SetBody(p.body, backbone='GPTNeoXBackbone', head='causal_lm', backbone_arguments={
            'vocabulary_size': self.VOCAB_SIZE, 'num_layers': 4, 'num_heads': 4, 'hidden_dim': 128,
            'intermediate_dim': 512, 'dropout': 0.1, 'max_sequence_length': self.SEQUENCE_LENGTH})
        self._SetTraining(p, keras_params.KerasParams(keras.optimizers.AdamW, weight_decay=0.1, beta_2=0.98))
        return p


@model_registry.RegisterSingleTaskModel
class PydocGPTNeoXLora(PydocGPTNeoX):
    """`PydocGPTNeoX`, fine-tuned with LoRA of rank 4: the weights of its training run are frozen.

    Train `PydocGPTNeoX` first, with --logdir=logs/keras_hub, or name its checkpoint by `train.init_from_checkpoint`.
    """

    START = 'logs/keras_hub/train/ckpt-1000'
    LORA_RANK = 4
    MAX_STEPS = 200
    WARMUP_STEPS = 20

    def Task(self):
        p = super().Task()
        p.body.model.Set(lora_rank=self.LORA_RANK, lora_layers=['.*/query_key_value'])
        p.train.init_from_checkpoint = self.START
        return p


@model_registry.RegisterSingleTaskModel
class SpokenNumbersBart(_SmallHubModel):
    """A small BART of KerasHub that reads spoken numbers and writes them in digits."""

    BATCH_SIZE = 64
    SOURCE_LENGTH = 24
    TARGET_LENGTH = 10
    VOCAB_SIZE = 320
    MAX_STEPS = 800
    WARMUP_STEPS = 100

    def _Input(self, split):
        tokenizer = tokenization.BytePairTokenizer.Params().Set(
            dataset='spoken_numbers', split='train[:1000]', text_feature='words', vocab_size=self.VOCAB_SIZE,
            keras_hub_class='BartTokenizer')
        return hub_inputs.SequenceToSequenceInput.Params().Set(
            name=f'spoken_numbers_{split}', dataset='spoken_numbers', split=split, source_field='words',
            target_field='digits', batch_size=self.BATCH_SIZE, sequence_length=self.SOURCE_LENGTH,
            target_length=self.TARGET_LENGTH, tokenizer=tokenizer)

    def Train(self):
        return self._Input('train[:12000]')

    def Task(self):
        p = language_model.LanguageModel.Params().Set(
            name='spoken_numbers_bart', sample_prompt='four hundred and seven thousand and twelve')
        self._SetBody(p.body, backbone='BartBackbone', head='seq_2_seq_lm', backbone_arguments={
            'vocabulary_size': self.VOCAB_SIZE, 'num_layers': 2, 'num_heads': 4, 'hidden_dim': 128,
            'intermediate_dim': 256, 'dropout': 0.0, 'max_sequence_length': self.SOURCE_LENGTH})
        self._SetTraining(p, keras_params.KerasParams(keras.optimizers.Adam))
        return p


DEFAULT = PydocGPTNeoX
