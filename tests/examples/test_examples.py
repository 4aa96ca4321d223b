"""The programs in examples/, on tiny presets and a few records; plain KerasHub loads what they save."""

import json
import pathlib
import runpy

import keras
import numpy as np
import pytest

from tests import needs
from tests.input import hub_presets

pytestmark = needs.keras_hub
EXAMPLES = pathlib.Path(__file__).parents[2] / 'examples'


@pytest.fixture(name='run')
def run_fixture(tmp_path):
    """Run an example in the folder of the preset, with flags that are paths in it."""

    def run(name, paths, *flags):
        arguments = [f'--{flag}={tmp_path / path}' for flag, path in {**paths, 'save': 'tuned'}.items()]
        return runpy.run_path(str(EXAMPLES / name))['main']([*arguments, *flags])

    keras.utils.set_random_seed(0)
    return run


def test_every_example_has_fewer_than_60_lines():
    examples = sorted(EXAMPLES.glob('*.py'))
    assert len(examples) >= 2
    assert all(len(path.read_text('utf-8').splitlines()) < 60 for path in examples)


def test_every_example_is_named_in_the_docs():
    docs = ''.join(path.read_text('utf-8') for path in (EXAMPLES.parent / 'docs').glob('*.md'))
    assert not [path.name for path in EXAMPLES.glob('*.py') if f'examples/{path.name}' not in docs]


def test_a_language_model_learns_to_answer(run, tmp_path):
    import keras_hub
    hub_presets.gpt2(tmp_path / 'preset', 8)
    pairs = [{'prompt': 'a', 'response': 'bb'}, {'prompt': 'c', 'response': 'dd'}] * 4
    (tmp_path / 'pairs.jsonl').write_text('\n'.join(map(json.dumps, pairs)), encoding='utf-8')
    history = run('finetune_lm.py', {'preset': 'preset', 'files': 'pairs.jsonl'}, '--sequence_length=8', '--epochs=40',
                  '--learning_rate=0.03')
    assert history['loss'][-1] < 0.1 < history['loss'][0]
    tuned = keras_hub.models.CausalLM.from_preset(str(tmp_path / 'tuned'))
    assert tuned.generate(['a', 'c'], max_length=8) == ['abb', 'cdd']


def test_a_classifier_learns_to_tell_texts_apart(run, tmp_path):
    import keras_hub
    hub_presets.bert(tmp_path / 'preset')
    rows = ['text,label', *['a a b,good', 'b c c,bad'] * 8]
    for name, content in (('train.csv', rows), ('test.csv', rows[:4])):
        (tmp_path / name).write_text('\n'.join(content), encoding='utf-8')
    names, history = run(
        'classify.py', {'preset': 'preset', 'train': 'train.csv', 'test': 'test.csv'}, '--sequence_length=8',
        '--learning_rate=0.03', '--epochs=10')
    assert names == ['bad', 'good'] and history['val_accuracy'][-1] == 1
    tuned = keras_hub.models.TextClassifier.from_preset(str(tmp_path / 'tuned'))
    np.testing.assert_array_equal(tuned.predict(np.array(['a a b', 'b c c']), verbose=0).argmax(-1), [1, 0])


def test_a_text_is_learnt_by_queries_and_values_alone(run, tmp_path, capsys):
    import keras_hub
    before = hub_presets.gpt2(tmp_path / 'preset', 8).backbone
    (tmp_path / 'texts.txt').write_text('abcd\n' * 16, encoding='utf-8')
    history = run('lora.py', {'preset': 'preset', 'texts': 'texts.txt'}, '--sequence_length=8', '--epochs=10',
                  '--learning_rate=0.1', '--rank=2')
    assert history['loss'][-1] < history['loss'][0] - 0.02
    assert 'Trained 160 of' in capsys.readouterr().out
    tuned = keras_hub.models.CausalLM.from_preset(str(tmp_path / 'tuned'))
    for found, expected in zip(tuned.backbone.weights, before.weights):
        assert np.array_equal(found, expected) != any(name in found.path for name in ('query/kernel', 'value/kernel'))
