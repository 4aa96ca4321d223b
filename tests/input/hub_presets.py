"""Tiny presets of KerasHub with tokenizers of a few letters, written to a folder."""

_SIZES = {'num_layers': 2, 'num_heads': 2, 'hidden_dim': 8, 'intermediate_dim': 16, 'dropout': 0.0}


def gpt2(folder, sequence_length=16):
    """Saves a causal language model of the letters a to d, and returns it."""
    import keras_hub as hub
    # As in GPT-2, token 0 is no end: KerasHub fills up texts with it.
    vocabulary = {token: number for number, token in enumerate(['!', '<|endoftext|>', 'a', 'b', 'c', 'd', 'Ġ', 'Ġa'])}
    tokenizer = hub.models.GPT2Tokenizer(vocabulary=vocabulary, merges=['Ġ a'])
    backbone = hub.models.GPT2Backbone(vocabulary_size=8, max_sequence_length=sequence_length, **_SIZES)
    return _saved(hub.models.GPT2CausalLM(backbone, hub.models.GPT2CausalLMPreprocessor(
        tokenizer, sequence_length=sequence_length)), folder)


def bert(folder, num_classes=2, sequence_length=8):
    """Saves a text classifier of the words a to c, and returns it."""
    import keras_hub as hub
    tokenizer = hub.models.BertTokenizer(vocabulary=['[PAD]', '[CLS]', '[SEP]', '[UNK]', '[MASK]', 'a', 'b', 'c'])
    backbone = hub.models.BertBackbone(vocabulary_size=8, max_sequence_length=sequence_length, **_SIZES)
    preprocessor = hub.models.BertTextClassifierPreprocessor(tokenizer, sequence_length=sequence_length)
    return _saved(hub.models.BertTextClassifier(backbone, num_classes, preprocessor), folder)


def _saved(task, folder):
    task.save_to_preset(str(folder))
    return task
