"""The example of LoRA learns a text, and plain KerasHub loads the preset that it saves."""

import pathlib
import runpy

import keras
import numpy as np

from tests import needs

pytestmark = needs.keras_hub
EXAMPLE = pathlib.Path(__file__).parents[2] / 'examples' / 'lora.py'


def save_preset(folder):
    import keras_hub
    vocabulary = {token: number for number, token in enumerate(['!', '<|endoftext|>', 'a', 'b', 'c', 'd', 'Ġ', 'Ġa'])}
    tokenizer = keras_hub.models.GPT2Tokenizer(vocabulary=vocabulary, merges=['Ġ a'])
    backbone = keras_hub.models.GPT2Backbone(
        vocabulary_size=8, num_layers=2, num_heads=2, hidden_dim=8, intermediate_dim=16, dropout=0.0,
        max_sequence_length=8)
    preprocessor = keras_hub.models.GPT2CausalLMPreprocessor(tokenizer, sequence_length=8)
    task = keras_hub.models.GPT2CausalLM(backbone, preprocessor)
    task.save_to_preset(str(folder))
    return backbone


def test_a_text_is_learnt_by_queries_and_values_alone(tmp_path, capsys):
    import keras_hub
    keras.utils.set_random_seed(0)
    before = save_preset(tmp_path / 'preset')
    (tmp_path / 'texts.txt').write_text('abcd\n' * 16, encoding='utf-8')
    history = runpy.run_path(str(EXAMPLE))['main']([
        *(f'--{flag}={tmp_path / path}' for flag, path in (
            ('preset', 'preset'), ('texts', 'texts.txt'), ('save', 'tuned'))),
        '--sequence_length=8', '--epochs=10', '--learning_rate=0.1', '--rank=2'])
    assert history['loss'][-1] < history['loss'][0] - 0.02
    assert 'Trained 160 of' in capsys.readouterr().out
    tuned = keras_hub.models.CausalLM.from_preset(str(tmp_path / 'tuned'))
    for found, expected in zip(tuned.backbone.weights, before.weights):
        assert np.array_equal(found, expected) != any(name in found.path for name in ('query/kernel', 'value/kernel'))


def test_it_has_fewer_than_60_lines():
    assert len(EXAMPLE.read_text('utf-8').splitlines()) < 60
