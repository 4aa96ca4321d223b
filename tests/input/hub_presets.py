"""Tiny presets of KerasHub with tokenizers of a few letters, written to a folder."""

import io

_GROUPED_HEADS = {
    'num_layers': 2, 'num_query_heads': 2, 'num_key_value_heads': 1, 'hidden_dim': 8, 'intermediate_dim': 16}
_SIZES = {'num_layers': 2, 'num_heads': 2, 'hidden_dim': 8, 'intermediate_dim': 16, 'dropout': 0.0}


def gpt2(folder, sequence_length=16, tokenizer=None):
    """Save a causal language model of the letters a to d, or of another tokenizer, and return it."""
    import keras_hub as hub
    # As in GPT-2, token 0 is no end: KerasHub fills up texts with it.
    vocabulary = {token: number for number, token in enumerate(['!', '<|endoftext|>', 'a', 'b', 'c', 'd', 'Ġ', 'Ġa'])}
    tokenizer = tokenizer or hub.models.GPT2Tokenizer(vocabulary=vocabulary, merges=['Ġ a'])
    backbone = hub.models.GPT2Backbone(
        vocabulary_size=tokenizer.vocabulary_size(), max_sequence_length=sequence_length, **_SIZES)
    return _saved(hub.models.GPT2CausalLM(backbone, hub.models.GPT2CausalLMPreprocessor(
        tokenizer, sequence_length=sequence_length)), folder)


def bert(folder, num_classes=2, sequence_length=8):
    """Save a text classifier of the words a to c, and return it."""
    import keras_hub as hub
    tokenizer = hub.models.BertTokenizer(vocabulary=['[PAD]', '[CLS]', '[SEP]', '[UNK]', '[MASK]', 'a', 'b', 'c'])
    backbone = hub.models.BertBackbone(vocabulary_size=8, max_sequence_length=sequence_length, **_SIZES)
    preprocessor = hub.models.BertTextClassifierPreprocessor(tokenizer, sequence_length=sequence_length)
    return _saved(hub.models.BertTextClassifier(backbone, num_classes, preprocessor), folder)


def llama3(folder, sequence_length=16):
    """Save a causal language model with a token that begins texts and two that end them, and return it."""
    import keras_hub as hub
    tokens = ['<|begin_of_text|>', '<|end_of_text|>', '<|start_header_id|>', '<|end_header_id|>', '<|eot_id|>',
              *'abcd!', 'Ġ', 'Ġa']
    tokenizer = hub.models.Llama3Tokenizer(
        vocabulary={token: number for number, token in enumerate(tokens)}, merges=['Ġ a'])
    backbone = hub.models.Llama3Backbone(vocabulary_size=len(tokens), **_GROUPED_HEADS)
    return _saved(hub.models.Llama3CausalLM(backbone, hub.models.Llama3CausalLMPreprocessor(
        tokenizer, sequence_length=sequence_length)), folder)


def qwen(folder, sequence_length=16):
    """Save a causal language model whose texts have no start, and return it."""
    import keras_hub as hub
    vocabulary = {token: number for number, token in enumerate(['!', '<|endoftext|>', 'a', 'b', 'Ġ', 'Ġa'])}
    tokenizer = hub.models.QwenTokenizer(vocabulary=vocabulary, merges=['Ġ a'])
    backbone = hub.models.QwenBackbone(vocabulary_size=len(vocabulary), **_GROUPED_HEADS)
    return _saved(hub.models.QwenCausalLM(backbone, hub.models.QwenCausalLMPreprocessor(
        tokenizer, sequence_length=sequence_length)), folder)


def gemma(folder, sequence_length=16, **fields):
    """Save a causal language model with a SentencePiece vocabulary learnt from a few words, and return it."""
    import keras_hub as hub
    import sentencepiece
    proto = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(['a b c d ab cd abc bcd']), model_writer=proto, model_type='bpe',
        vocab_size=fields.pop('vocab_size', 20), pad_id=0, bos_id=1, eos_id=2, unk_id=3, pad_piece='<pad>',
        bos_piece='<bos>', eos_piece='<eos>', unk_piece='<unk>', minloglevel=2, **fields)
    tokenizer = hub.models.GemmaTokenizer(proto=proto.getvalue())
    backbone = hub.models.GemmaBackbone(vocabulary_size=tokenizer.vocabulary_size(), head_dim=4, **_GROUPED_HEADS)
    return _saved(hub.models.GemmaCausalLM(backbone, hub.models.GemmaCausalLMPreprocessor(
        tokenizer, sequence_length=sequence_length)), folder)


def bart(folder, source_length=8, target_length=6):
    """Save a sequence-to-sequence model of the letters a to d, and return it."""
    import keras_hub as hub
    vocabulary = {token: number for number, token in enumerate(['<s>', '<pad>', '</s>', 'a', 'b', 'c', 'd', 'Ġ', 'Ġa'])}
    tokenizer = hub.models.BartTokenizer(vocabulary=vocabulary, merges=['Ġ a'])
    backbone = hub.models.BartBackbone(
        vocabulary_size=9, max_sequence_length=max(source_length, target_length), **_SIZES)
    return _saved(hub.models.BartSeq2SeqLM(backbone, hub.models.BartSeq2SeqLMPreprocessor(
        tokenizer, encoder_sequence_length=source_length, decoder_sequence_length=target_length)), folder)


def _saved(task, folder):
    task.save_to_preset(str(folder))
    return task
