"""Training a translation model whose tables are one, and evaluating it by whole translations."""

import keras
import pytest
import tensorflow_datasets as tfds

from lingpipe import base_model_params, layers
from lingpipe.input import translation_input
from lingpipe.layers import translation
from lingpipe.models import translation_model
from lingpipe.training import evaluation, inference, trainer
from tests.input import small_datasets


class Letters(small_datasets.SmallDataset):
    """A letter, and the same letter."""

    features = tfds.features.Translation(languages=('from', 'into'))
    supervised_keys, splits = ('from', 'into'), ('train', 'test')

    def examples(self, split):
        return [{'from': letter, 'into': letter} for letter in ('ab' * 32 if split == 'train' else 'ababa')]


def make_params(data_dir, num_partitions=2):
    class Tiny(base_model_params.SingleTaskModelParams):
        def Task(self):
            p = translation_model.TranslationModel.Params().Set(name='tiny_translation', sample_source='b')
            p.body.Set(num_partitions=num_partitions, num_micro_batches=2, layers=translation.transformer_nmt_layers(
                num_layers=1, vocab_size=128, model_dim=16, hidden_dim=32, num_heads=2, is_tied=True))
            p.train.Set(
                max_steps=200, ema_decay=0.8, optimizer=layers.KerasParams(keras.optimizers.Adam), learning_rate=0.01)
            return p

    params = Tiny().Model()
    params.Define('input', translation_input.TranslationInput.Params().Set(
        dataset='letters', data_dir=data_dir, batch_size=8, source_length=2, target_length=3), '')
    return params, {'Test': params.input.Copy().Set(split='test')}


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    """Data directory, log directory and results of a training with two partitions."""
    data_dir, logdir = (str(tmp_path_factory.mktemp(name)) for name in ('data', 'logs'))
    return data_dir, logdir, trainer.Trainer(*make_params(data_dir), logdir).run()


def test_a_checkpoint_evaluates_translations_with_other_partitions(trained, capsys):
    data_dir, logdir, results = trained
    again = evaluation.CheckpointEvaluation(*make_params(data_dir, num_partitions=1), logdir).once()
    assert again['Test'] == pytest.approx(results['Test'], rel=1e-4)
    assert results['Test']['exact_match'] == 1.0
    assert 'accuracy 100.00 %, exact_match 100.00 %\n' in capsys.readouterr().out


def test_a_checkpoint_translates_only_text_of_a_valid_length(trained, capsys):
    data_dir, logdir, _ = trained
    translation_of = inference.CheckpointTranslation(make_params(data_dir)[0], logdir)
    assert [translation_of.run(text) for text in 'ab'] == ['a', 'b']
    assert capsys.readouterr().out == 'a\nb\n'
    for text, count in (('', 0), ('aaa', 3)):
        with pytest.raises(ValueError, match=f'has {count} tokens.* Give one of 1 to 2'):
            translation_of.run(text)
