"""The default KerasHub model: trained, resumed and exported, and loaded by plain KerasHub in another process."""

import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from lingpipe import model_registry
from lingpipe.training import inference, trainer
from tests import needs

pytestmark = needs.keras_hub
TINY = {'vocabulary_size': 300, 'num_layers': 2, 'num_heads': 2, 'hidden_dim': 8, 'intermediate_dim': 16, 'dropout': 0.1,
        'max_sequence_length': 8}
LOAD = """
import sys, keras_hub, numpy as np
task = keras_hub.models.CausalLM.from_preset(sys.argv[1])
assert not any(name.startswith('lingpipe') for name in sys.modules)
inputs = task.preprocessor.generate_preprocess(['The "for" statement'], sequence_length=8)
np.savez(sys.argv[2], logits=task(inputs), **inputs)
"""


def tiny_params(max_steps):
    params = model_registry.GetParams('params.keras_hub.PydocGPT2', 'Train')
    params.input.Set(split='dev', batch_size=8, sequence_length=8)
    params.input.tokenizer.Set(split='dev', vocab_size=300)
    params.task.body.Set(num_micro_batches=2)
    params.task.body.model.backbone_arguments = TINY
    params.train.max_steps = max_steps
    return params


def train(params, folder):
    run = trainer.Trainer(params, {}, str(folder))
    run.run()
    return run


@pytest.fixture(name='run', scope='module')
def run_fixture(tmp_path_factory):
    folder = tmp_path_factory.mktemp('run')
    params = tiny_params(4)
    return params, folder, train(params, folder)


def weights_of(run):
    return [variable.numpy() for variable in run._task.body.model.weights]


def test_training_resumes_to_the_same_weights(run, tmp_path):
    _, _, whole = run
    train(tiny_params(2), tmp_path)
    for found, expected in zip(weights_of(train(tiny_params(4), tmp_path)), weights_of(whole)):
        np.testing.assert_array_equal(found, expected)


def test_plain_kerashub_loads_what_was_exported(run, tmp_path):
    params, folder, trained = run
    *_, preset = inference.Exporter(params, str(folder)).run()
    subprocess.run([sys.executable, '-c', LOAD, preset, str(tmp_path / 'found.npz')], check=True)
    found = dict(np.load(tmp_path / 'found.npz'))
    logits = found.pop('logits')
    assert list(found['token_ids'][0][1:4]) == list(
        params.input.tokenizer.Instantiate().encode(tf.constant('The "for" statement')).numpy()[:3])
    np.testing.assert_allclose(logits, trained._task.body.model(found), rtol=1e-3, atol=1e-5)
