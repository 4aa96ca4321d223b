"""A preset is fine-tuned on prompts and responses by the trainer, and measured as plain Keras measures it."""

import json
import math

import numpy as np
import pytest
import tensorflow as tf

from lingpipe import model_registry
from lingpipe.input import hub_inputs, hub_tokenizer
from lingpipe.training import trainer
from tests import needs
from tests.input import hub_presets

pytestmark = needs.keras_hub
PAIRS = [('a', 'bb'), ('c', 'dd'), ('b a', 'c'), ('d', 'a b c')]


def params_of(folder, max_steps):
    preset = str(folder / 'preset')
    params = model_registry.GetParams('params.keras_hub.PydocGPTNeoX', 'Train')
    params.input = hub_inputs.InstructionInput.Params().Set(
        files=str(folder / 'pairs.jsonl'), batch_size=4, sequence_length=8,
        tokenizer=hub_tokenizer.KerasHubTokenizer.Params().Set(preset=preset))
    params.task.body.Set(num_micro_batches=2)
    params.task.body.model.Set(preset=preset, backbone=None, backbone_arguments={})
    params.train.max_steps = max_steps
    return params


def run(params, logdir):
    training = trainer.Trainer(params, {'Test': params.input}, str(logdir))
    return training, training.run()['Test']


@pytest.fixture(name='whole', scope='module')
def whole_fixture(tmp_path_factory):
    """Folder of the data, the trainer after three steps, and its metrics."""
    folder = tmp_path_factory.mktemp('run')
    hub_presets.gpt2(folder / 'preset', 8)
    (folder / 'pairs.jsonl').write_text('\n'.join(json.dumps(
        {'prompt': prompt, 'response': response}) for prompt, response in PAIRS), encoding='utf-8')
    return folder, *run(params_of(folder, 3), folder / 'whole')


def test_responses_are_measured_as_plain_keras_does(whole):
    folder, training, metrics = whole
    nats = weights = num_bytes = 0.0
    for inputs, labels, weight, size in params_of(folder, 3).input.Instantiate().evaluation_dataset():
        logits = training._task.body.model(inputs)
        nats += np.sum(weight * tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        weights, num_bytes = weights + np.sum(weight), num_bytes + np.sum(weight * size)
    assert weights == num_bytes == 3 + 3 + 2 + 6
    np.testing.assert_allclose(metrics['loss'], nats / weights, rtol=1e-5)
    np.testing.assert_allclose(metrics['bits_per_byte'], nats / math.log(2) / num_bytes, rtol=1e-5)


def test_training_resumes_bit_for_bit(whole, tmp_path):
    folder, training, _ = whole
    run(params_of(folder, 2), tmp_path)
    resumed, _ = run(params_of(folder, 3), tmp_path)
    for found, expected in zip(resumed._task.body.model.weights, training._task.body.model.weights):
        np.testing.assert_array_equal(found, expected)
