"""A preset is fine-tuned on prompts and responses by the trainer, and measured as plain Keras measures it."""

import json
import math

import numpy as np
import pytest
import tensorflow as tf

from lingpipe import model_registry
from lingpipe.input import hub_tokenizer, instruction_input
from lingpipe.training import inference, trainer
from tests import needs
from tests.input import hub_presets

pytestmark = needs.keras_hub
PAIRS = [('a', 'bb', 1), ('c', 'dd', 2), ('b a', 'c', 1), ('d', 'a b c', 0.5), ('', 'x', 1)]


@pytest.fixture(name='folder')
def folder_fixture(tmp_path):
    hub_presets.gpt2(tmp_path / 'preset', 8)
    (tmp_path / 'pairs.jsonl').write_text('\n'.join(json.dumps(
        {'prompt': prompt, 'response': response, 'w': weight}) for prompt, response, weight in PAIRS), encoding='utf-8')
    return tmp_path


def params_of(folder, max_steps, packed=False):
    preset = str(folder / 'preset')
    params = model_registry.GetParams('params.keras_hub.PydocGPT2', 'Train')
    params.input = instruction_input.InstructionInput.Params().Set(
        files=str(folder / 'pairs.jsonl'), weight_field='w', bad_records='skip', batch_size=4, sequence_length=8,
        packed=packed, tokenizer=hub_tokenizer.KerasHubTokenizer.Params().Set(preset=preset))
    params.task.body.Set(num_micro_batches=2)
    params.task.body.model.Set(preset=preset, backbone=None, backbone_arguments={})
    params.train.max_steps = max_steps
    return params


def run(params, logdir):
    training = trainer.Trainer(params, {'Test': params.input}, str(logdir))
    return training, training.run()['Test']


def test_responses_are_measured_as_plain_keras_does(folder, capsys):
    params = params_of(folder, 3)
    training, metrics = run(params, folder / 'run')
    nats = weights = num_bytes = 0.0
    for inputs, labels, weight, size in params.input.Instantiate().evaluation_dataset():
        logits = training._task.body.model(inputs)
        nats += np.sum(weight * tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        weights, num_bytes = weights + np.sum(weight), num_bytes + np.sum(weight * size)
    assert weights == num_bytes == 3 + 3 * 2 + 2 + 6 * 0.5
    np.testing.assert_allclose(metrics['loss'], nats / weights, rtol=1e-5)
    np.testing.assert_allclose(metrics['bits_per_byte'], nats / math.log(2) / num_bytes, rtol=1e-5)
    assert "pairs.jsonl'; any number may be skipped" in capsys.readouterr().out


def test_training_on_packed_rows_resumes_to_the_same_weights(folder):
    whole, _ = run(params_of(folder, 4, packed=True), folder / 'whole')
    run(params_of(folder, 2, packed=True), folder / 'parts')
    resumed, _ = run(params_of(folder, 4, packed=True), folder / 'parts')
    for found, expected in zip(resumed._task.body.model.weights, whole._task.body.model.weights):
        np.testing.assert_array_equal(found, expected)


def test_the_exported_preset_has_the_tokenizer_of_the_first(folder):
    import keras_hub
    params = params_of(folder, 1)
    training, _ = run(params, folder / 'run')
    *_, preset = inference.Exporter(params, str(folder / 'run')).run()
    plain = keras_hub.models.CausalLM.from_preset(preset)
    inputs, *_ = plain.preprocessor(['a b'])
    assert inputs['token_ids'].shape == (1, 8)
    np.testing.assert_allclose(plain(inputs), training._task.body.model(inputs), rtol=1e-4, atol=1e-5)
