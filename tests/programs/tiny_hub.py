"""A causal language model of KerasHub that trains in seconds on the bytes of a file in the current folder."""

from lingpipe import base_model_params, model_registry
from lingpipe.input import hub_inputs, tokenization
from lingpipe.keras_graph import hub_model
from lingpipe.models import language_model

FILE = 'texts.jsonl'


@model_registry.RegisterSingleTaskModel
class TinyGPT2(base_model_params.SingleTaskModelParams):
    """Two layers, of which the embedding is also the last one."""

    def Train(self):
        return hub_inputs.InstructionInput.Params().Set(
            files=FILE, text_field='text', tokenizer=tokenization.ByteTokenizer.Params(), sequence_length=8, batch_size=8)

    def Test(self):
        return self.Train()

    def Task(self):
        p = language_model.LanguageModel.Params().Set(name='tiny_gpt2', sample_length=0)
        p.body.Set(num_partitions=2, num_micro_batches=2)
        p.body.model = hub_model.KerasHubModel.Params().Set(backbone='GPT2Backbone', backbone_arguments={
            'vocabulary_size': 256, 'num_layers': 2, 'num_heads': 2, 'hidden_dim': 8, 'intermediate_dim': 16,
            'dropout': 0.1, 'max_sequence_length': 8})
        p.train.Set(max_steps=3, steps_per_loop=1, learning_rate=0.01, ema_decay=0.9, clip_gradient_norm_to_value=1.0)
        return p


DEFAULT = TinyGPT2
