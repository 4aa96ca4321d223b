"""Training a language model whose softmax shares the embedding's table with another partition."""

import keras
import numpy as np
import pytest

from lingpipe import base_model_params, layers
from lingpipe.input import text_input
from lingpipe.layers import transformer
from lingpipe.models import language_model, sampling
from lingpipe.training import inference, trainer
from tests.curves import read


def make_params(data_dir, num_partitions=2):
    class Tiny(base_model_params.SingleTaskModelParams):
        def Task(self):
            p = language_model.LanguageModel.Params().Set(name='tiny_text')
            p.body.Set(num_partitions=num_partitions, num_micro_batches=2, layers=transformer.transformer_lm_layers(
                num_layers=1, vocab_size=256, model_dim=8, hidden_dim=16, num_heads=2, is_tied=True))
            p.eval.Set(interval_steps=3)
            p.train.Set(
                max_steps=6, ema_decay=0.9, optimizer=layers.KerasParams(keras.optimizers.Adam), learning_rate=0.01)
            return p

    params = Tiny().Model()
    params.Define('input', text_input.TextInput.Params().Set(data_dir=data_dir, batch_size=4, sequence_length=16), '')
    held_out = {name: params.input.Copy().Set(split=f'{name.lower()}[:20%]', batch_size=64) for name in ('Dev', 'Test')}
    return params, held_out


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    """Data directory, log directory and results of six steps with two partitions."""
    data_dir, logdir = (str(tmp_path_factory.mktemp(name)) for name in ('data', 'logs'))
    return data_dir, logdir, trainer.Trainer(*make_params(data_dir), logdir).run()


def test_an_exported_model_with_a_shared_table_gives_its_logits(trained):
    """The export has the table twice."""
    data_dir, logdir, _ = trained
    params, _ = make_params(data_dir)
    exporter = inference.Exporter(params, logdir)
    path, _ = exporter.run()
    tokens = np.arange(32).reshape(2, 16)
    np.testing.assert_allclose(keras.saving.load_model(path)(tokens), exporter._model(tokens), atol=1e-6)
    table, other = (exporter._body.stack[index].table for index in (0, -1))
    assert table is other


def test_test_data_wait_for_the_end_where_there_are_dev_data(trained):
    _, logdir, results = trained
    assert set(results) == {'Dev', 'Test'}
    assert {step for step, _ in read(f'{logdir}/eval_dev')['bits_per_byte']} == {3, 6}
    assert {step for step, _ in read(f'{logdir}/eval_test')['bits_per_byte']} == {6}


def test_a_sample_is_written_with_every_evaluation(trained):
    _, logdir, _ = trained
    samples = dict(read(f'{logdir}/train')['sample'])
    assert set(samples) == {3, 6}
    assert samples[3] != samples[6]


def test_a_checkpoint_generates_as_at_the_end_of_training(trained, capsys):
    """The text is the same for any number of partitions."""
    data_dir, logdir, _ = trained
    at_the_end = b''.join(dict(read(f'{logdir}/train')['sample'])[6].flat).decode()
    for num_partitions in (1, 3):
        params, _ = make_params(data_dir, num_partitions)
        text = inference.CheckpointGeneration(params, logdir, sampling.Sampling()).run([''], 100)[0]
        assert capsys.readouterr().out == text + '\n'
        assert '\n'.join('    ' + line for line in text.splitlines()) == at_the_end
    greedy = inference.CheckpointGeneration(params, logdir, sampling.Sampling(temperature=0.0))
    assert greedy.run(['def'], 5) == greedy.run(['def'], 5)
    assert capsys.readouterr().out.startswith('def')
