"""The KerasHub models: trained, resumed and exported, and loaded by plain KerasHub, the default in another process."""

import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from lingpipe import model_registry
from lingpipe.devices import variable_placement
from lingpipe.input import hub_inputs
from lingpipe.keras_graph import model_source
from lingpipe.models import image_classifier, sampling
from lingpipe.training import errors, inference, trainer
from tests import needs

pytestmark = needs.keras_hub
TINY = {'vocabulary_size': 300, 'num_layers': 2, 'num_heads': 2, 'hidden_dim': 16, 'intermediate_dim': 16,
        'dropout': 0.1, 'max_sequence_length': 8}
LOAD = """
import sys, keras_hub, numpy as np
task = keras_hub.models.CausalLM.from_preset(sys.argv[1])
assert not any(name.startswith('lingpipe') for name in sys.modules)
inputs = task.preprocessor.generate_preprocess(['The "for" statement'], sequence_length=8)
np.savez(sys.argv[2], logits=task(inputs), **inputs)
"""


def tiny_params(max_steps, name='PydocGPTNeoX'):
    params = model_registry.GetParams(f'params.keras_hub.{name}', 'Train')
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


def test_a_file_of_prompts_is_continued_on_any_number_of_partitions(run, capsys):
    params, folder, trained = run
    params = params.Copy()
    found = []
    for num_partitions in (1, 2):
        params.task.body.num_partitions = num_partitions
        writer = inference.CheckpointGeneration(params, str(folder), sampling.Sampling(top_p=0.9))
        found.append(writer.run(['for', 'a', ''], 5))
        assert capsys.readouterr().out.startswith(f'--- 1 of 3\nfor{found[-1][0]}\n--- 2 of 3\na')
    assert found[0] == found[1] and any(found[0])
    assert trained._task.sample(params.input.Instantiate(), variable_placement.read_variable)


def test_plain_kerashub_loads_what_was_exported(run, tmp_path):
    params, folder, trained = run
    *_, preset = inference.Exporter(params, str(folder)).run()
    subprocess.run([sys.executable, '-c', LOAD, preset, str(tmp_path / 'found.npz')], check=True)
    found = dict(np.load(tmp_path / 'found.npz'))
    logits = found.pop('logits')
    assert list(found['token_ids'][0][1:4]) == list(
        params.input.tokenizer.Instantiate().encode(tf.constant('The "for" statement')).numpy()[:3])
    np.testing.assert_allclose(logits, trained._task.body.model(found), rtol=1e-3, atol=1e-5)


RECORDS = [(f'{word} {number}', word) for number in range(20) for word in ('for', 'while')]


def tiny_classifier_params(folder):
    """A classifier of texts in a file."""
    file = folder / 'records.csv'
    file.write_text('text,label\n' + ''.join(f'{text},{label}\n' for text, label in RECORDS))
    params = tiny_params(2)
    params.input = hub_inputs.TextClassificationInput.Params().Set(
        files=str(file), class_names=['for', 'while'], batch_size=8, sequence_length=16,
        tokenizer=params.input.tokenizer.Set(keras_hub_class='RobertaTokenizer'))
    params.task = image_classifier.ImageClassifier.Params().Delete('train', 'eval').Set(
        name='classifier', body=params.task.body)
    params.task.body.model.Set(
        backbone='RobertaBackbone', head='text_classifier', head_arguments={'num_classes': 2},
        backbone_arguments={**TINY, 'num_layers': 1, 'max_sequence_length': 16})
    params.eval.best_metric = 'accuracy'
    return params


def test_a_classifier_is_trained_evaluated_and_exported(tmp_path):
    import keras_hub
    params = tiny_classifier_params(tmp_path)
    run = trainer.Trainer(params, {'Test': params.input.Copy()}, str(tmp_path / 'run'))
    results = run.run()['Test']
    *_, preset = inference.Exporter(params, str(tmp_path / 'run')).run()
    plain = keras_hub.models.TextClassifier.from_preset(preset)
    assert plain.preprocessor.sequence_length == 16
    labels = np.array([label == 'while' for _, label in RECORDS], int)
    inputs = plain.preprocessor([text for text, _ in RECORDS])  # outside of tf.data, which would trace it
    plain.preprocessor = None
    logits = plain.predict(inputs, verbose=0)
    np.testing.assert_allclose(results['accuracy'], np.mean(logits.argmax(-1) == labels), atol=1e-6)
    nats = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    np.testing.assert_allclose(results['loss'], np.mean(nats), rtol=1e-4)


def tiny_bart_params(max_steps):
    params = model_registry.GetParams('params.keras_hub.SpokenNumbersBart', 'Train')
    params.input.Set(split='test[:16]', batch_size=8, sequence_length=16)
    params.input.tokenizer.Set(split='test[:16]', vocab_size=300)
    params.task.Set(sample_length=0)
    params.task.body.Set(num_micro_batches=2)
    params.task.body.model.backbone_arguments = {**TINY, 'num_layers': 1, 'max_sequence_length': 16}
    params.train.max_steps = max_steps
    return params


@pytest.fixture(name='bart', scope='module')
def bart_fixture(tmp_path_factory):
    """The params of a BART, the folder of its run, the trainer that ended it, and its metrics."""
    folder, params = tmp_path_factory.mktemp('bart'), tiny_bart_params(2)
    run = trainer.Trainer(params, {'Test': params.input.Copy()}, str(folder))
    return params, folder, run, run.run()['Test']


def test_a_bart_is_measured_as_plain_keras_measures_it(bart):
    params, _, run, metrics = bart
    nats = weight = hits = 0.0
    for inputs, labels, weights, *_ in params.input.Instantiate().evaluation_dataset():
        logits = run._task.body.model.predict_on_batch(inputs)
        nats += np.sum(weights * tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        hits += np.sum(weights * (tf.argmax(logits, -1, tf.int32) == labels))
        weight += np.sum(weights)
    np.testing.assert_allclose([metrics['loss'], metrics['accuracy']], [nats / weight, hits / weight], rtol=1e-4)


def test_plain_kerashub_loads_the_preset_of_a_bart(bart):
    import keras_hub
    params, folder, run, _ = bart
    model = run._task.body.model
    preset, = params.task.body.model.Instantiate().export(model, str(folder), params.input.tokenizer.Instantiate())
    plain = keras_hub.models.Seq2SeqLM.from_preset(preset)
    inputs, *_ = next(iter(params.input.Instantiate().evaluation_dataset()))
    np.testing.assert_allclose(plain(inputs), model(inputs), rtol=1e-3, atol=1e-5)


def test_sources_are_translated_from_a_checkpoint(bart, capsys):
    params, folder, _, _ = bart
    found = inference.CheckpointGeneration(params, str(folder), sampling.Sampling()).run(['forty-two', 'one'], 3)
    assert f'--- 1 of 2\nforty-two -> {found[0]}\n--- 2 of 2\none -> ' in capsys.readouterr().out


def test_an_input_that_does_not_go_with_a_head_is_refused(tmp_path):
    params = tiny_params(1)
    params.task.body.model.Set(head='seq_2_seq_lm', backbone='BartBackbone')
    with pytest.raises(ValueError, match="the input gives .'padding_mask', 'token_ids'.. Use"):
        trainer.Trainer(params, {}, str(tmp_path))


def test_a_vocabulary_too_small_is_refused(tmp_path):
    params = tiny_classifier_params(tmp_path)
    params.task.body.model.backbone_arguments['vocabulary_size'] = 299
    with pytest.raises(ValueError, match='vocab_size=300, but the backbone has vocabulary_size=299'):
        trainer.Trainer(params, {}, str(tmp_path))


def lora_params(max_steps, start):
    params = tiny_params(max_steps, 'PydocGPTNeoXLora')
    params.train.Set(init_from_checkpoint=f'{start}/train/ckpt-4', ema_decay=0.5)
    return params


def test_lora_trains_on_from_a_checkpoint_resumes_and_is_merged_on_export(run, tmp_path):
    import keras_hub
    _, start, base = run
    whole = train(lora_params(4, start), tmp_path / 'whole')
    train(lora_params(2, start), tmp_path / 'resumed')
    model, resumed = whole._task.body.model, train(lora_params(4, start), tmp_path / 'resumed')
    for found, expected in zip(weights_of(resumed), weights_of(whole)):
        np.testing.assert_array_equal(found, expected)
    names = model_source.names_by_path(model)
    trained = [name for name in names if 'lora_kernel' in name]
    assert len(trained) == 4 and [each.path for each in whole._task.body.trainable_variables] == trained
    for name, variable in model_source.names_by_path(base._task.body.model).items():
        np.testing.assert_array_equal(names[name], variable)
    newest = tf.train.latest_checkpoint(str(tmp_path / 'whole' / 'train'))
    averaged = [name for name, _ in tf.train.list_variables(newest) if name.startswith('moving_average/')]
    assert len(averaged) == len(trained)
    for command in (inference.Exporter(tiny_params(4), str(tmp_path / 'whole')).run,
                    lambda: train(tiny_params(4).Set(**{'train.init_from_checkpoint': newest}), tmp_path / 'new')):
        with pytest.raises(errors.TrainingError, match=r'4 low-rank .*query_key_value/lora_kernel_a.*lora_rank=4'):
            command()
    *_, preset = inference.Exporter(lora_params(4, start), str(tmp_path / 'whole')).run()
    for name, variable in names.items():
        if name in trained:
            variable.assign(whole._program.average.averages[name])
    inputs = {'token_ids': np.arange(16).reshape(2, 8), 'padding_mask': np.ones([2, 8], bool)}
    task = keras_hub.models.CausalLM.from_preset(preset)
    np.testing.assert_allclose(task(inputs), model(inputs), rtol=1e-3, atol=1e-5)
    assert len(task.weights) == len(names) - len(trained)
