"""Models of KerasHub that need no network: a small GPT-NeoX, and a small RoBERTa that tells libraries apart."""

import keras

from lingpipe import base_model_params, model_registry
from lingpipe.input import byte_pair_tokenizer, text_classification_input, text_input
from lingpipe.keras_graph import hub_model
from lingpipe.layers import keras_params
from lingpipe.models import image_classifier, language_model


@model_registry.RegisterSingleTaskModel
class PydocGPTNeoX(base_model_params.SingleTaskModelParams):
    """A small GPT-NeoX of KerasHub on the Python interpreter's help texts, with byte pairs learnt from them."""

    NUM_PARTITIONS = 2
    NUM_MICRO_BATCHES = 4
    BATCH_SIZE = 16
    SEQUENCE_LENGTH = 128
    VOCAB_SIZE = 1024
    MAX_STEPS = 1000
    WARMUP_STEPS = 100

    def _Input(self, split):
        tokenizer = byte_pair_tokenizer.BytePairTokenizer.Params().Set(
            vocab_size=self.VOCAB_SIZE, keras_hub_class='GPTNeoXTokenizer')
        return text_input.TextInput.Params().Set(
            name=f'pydoc_topics_{split}', dataset='pydoc_topics', split=split, batch_size=self.BATCH_SIZE,
            sequence_length=self.SEQUENCE_LENGTH, tokenizer=tokenizer, has_padding_mask=True)

    def Train(self):
        return self._Input('train')

    def _HeldOut(self, split):
        return self._Input(split).Set(evaluation_context=self.SEQUENCE_LENGTH // 2)

    def Dev(self):
        return self._HeldOut('dev')

    def Test(self):
        return self._HeldOut('test')

    def Task(self):
        p = language_model.LanguageModel.Params().Set(name='pydoc_gpt_neo_x')
        p.body.Set(num_partitions=self.NUM_PARTITIONS, num_micro_batches=self.NUM_MICRO_BATCHES, recompute='none')
        p.body.model = hub_model.KerasHubModel.Params().Set(
            backbone='GPTNeoXBackbone', head='causal_lm', backbone_arguments={
                'vocabulary_size': self.VOCAB_SIZE, 'num_layers': 4, 'num_heads': 4, 'hidden_dim': 128,
                'intermediate_dim': 512, 'dropout': 0.1, 'max_sequence_length': self.SEQUENCE_LENGTH})
        p.train.Set(
            max_steps=self.MAX_STEPS, clip_gradient_norm_to_value=1.0,
            optimizer=keras_params.KerasParams(keras.optimizers.AdamW, weight_decay=0.1, beta_2=0.98),
            lr_schedule=keras_params.KerasParams(
                keras.optimizers.schedules.CosineDecay, initial_learning_rate=0.0, warmup_target=3e-3,
                warmup_steps=self.WARMUP_STEPS, decay_steps=self.MAX_STEPS - self.WARMUP_STEPS),
            save_interval_seconds=60.0, summary_interval_steps=20)
        p.eval.Set(interval_steps=200)
        return p


@model_registry.RegisterSingleTaskModel
class PydocGPTNeoXLora(PydocGPTNeoX):
    """The same model, trained on by LoRA of rank 4: the weights of a run of `PydocGPTNeoX` are frozen.

    Train that first, with --logdir=logs/keras_hub, or name its checkpoint by `train.init_from_checkpoint`.
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
class LibraryDocsRoberta(base_model_params.SingleTaskModelParams):
    """A small RoBERTa of KerasHub that tells from a paragraph of documentation which library it is about."""

    NUM_PARTITIONS = 2
    NUM_MICRO_BATCHES = 4
    BATCH_SIZE = 32
    SEQUENCE_LENGTH = 64
    VOCAB_SIZE = 4096
    MAX_STEPS = 600
    WARMUP_STEPS = 60

    def _Input(self, split):
        tokenizer = byte_pair_tokenizer.BytePairTokenizer.Params().Set(
            dataset='library_docs', vocab_size=self.VOCAB_SIZE, keras_hub_class='RobertaTokenizer')
        return text_classification_input.TextClassificationInput.Params().Set(
            name=f'library_docs_{split}', dataset='library_docs', split=split, batch_size=self.BATCH_SIZE,
            sequence_length=self.SEQUENCE_LENGTH, tokenizer=tokenizer)

    def Train(self):
        return self._Input('train')

    def Dev(self):
        return self._Input('dev')

    def Test(self):
        return self._Input('test')

    def Task(self):
        p = image_classifier.ImageClassifier.Params().Set(name='library_docs_roberta')
        p.body.Set(num_partitions=self.NUM_PARTITIONS, num_micro_batches=self.NUM_MICRO_BATCHES, recompute='none')
        p.body.model = hub_model.KerasHubModel.Params().Set(
            backbone='RobertaBackbone', head='text_classifier', head_arguments={'num_classes': 4}, backbone_arguments={
                'vocabulary_size': self.VOCAB_SIZE, 'num_layers': 2, 'num_heads': 4, 'hidden_dim': 64,
                'intermediate_dim': 256, 'dropout': 0.1, 'max_sequence_length': self.SEQUENCE_LENGTH})
        p.train.Set(
            max_steps=self.MAX_STEPS, clip_gradient_norm_to_value=1.0,
            optimizer=keras_params.KerasParams(keras.optimizers.AdamW, weight_decay=0.01),
            lr_schedule=keras_params.KerasParams(
                keras.optimizers.schedules.CosineDecay, initial_learning_rate=0.0, warmup_target=1e-3,
                warmup_steps=self.WARMUP_STEPS, decay_steps=self.MAX_STEPS - self.WARMUP_STEPS),
            save_interval_seconds=60.0, summary_interval_steps=20)
        p.eval.Set(interval_steps=200)
        return p


DEFAULT = PydocGPTNeoX
