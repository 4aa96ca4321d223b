"""Models of KerasHub as bodies, compared with plain KerasHub."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import lingpipe
from lingpipe.devices import variable_placement
from lingpipe.input import hub_tokenizer, tokenization
from lingpipe.keras_graph import hub_model
from tests import needs
from tests.input import hub_presets

pytestmark = needs.keras_hub
GPT2 = {'vocabulary_size': 20, 'num_layers': 2, 'num_heads': 2, 'hidden_dim': 8, 'intermediate_dim': 16,
        'max_sequence_length': 8}
GEMMA = {'vocabulary_size': 20, 'num_layers': 2, 'num_query_heads': 2, 'num_key_value_heads': 1, 'hidden_dim': 8,
         'intermediate_dim': 16, 'head_dim': 4}
BERT = {**GPT2, 'num_layers': 1}


def tokens(segments=False):
    shape = [4, 8]
    inputs = {'token_ids': np.random.default_rng(0).integers(0, 20, shape, 'int32'), 'padding_mask': np.ones(shape, bool)}
    return inputs | ({'segment_ids': np.zeros(shape, 'int32')} if segments else {})


def pipe_of(inputs, **fields):
    p = lingpipe.GPipeLayer.Params().Set(
        name='body', num_partitions=2, num_micro_batches=2, devices=['CPU:1', 'CPU:2'],
        model=hub_model.KerasHubModel.Params().Set(**fields))
    pipe = p.Instantiate()
    pipe.build_from_specs(tf.nest.map_structure(lambda part: tf.TensorSpec(part.shape, part.dtype), inputs))
    return pipe


@pytest.fixture(name='preset', scope='module')
def preset_fixture(hub, tmp_path_factory):
    folder = str(tmp_path_factory.mktemp('presets') / 'gpt2')
    backbone = hub.models.GPT2Backbone(**GPT2)
    for variable in backbone.weights:
        variable.assign(np.random.default_rng(len(variable.path)).normal(size=variable.shape))
    backbone.save_to_preset(folder)
    return folder, backbone


def test_sharded_weights_are_read(hub, preset, tmp_path):
    folder = str(tmp_path / 'sharded')
    preset[1].save_to_preset(folder, max_shard_size=2e-6)
    assert len(list(tmp_path.glob('sharded/model_*.weights.h5'))) > 1
    for found, expected in zip(pipe_of(tokens(), preset=folder).model.weights, preset[1].weights):
        np.testing.assert_array_equal(found, expected)


def test_safetensors_of_hugging_face_are_read(hub, tmp_path):
    pytest.importorskip('safetensors')
    backbone, folder = hub.models.GemmaBackbone(**GEMMA), str(tmp_path / 'gemma')
    backbone.export_to_transformers(folder)
    pipe = pipe_of(tokens(), preset=folder, head='backbone')
    np.testing.assert_allclose(pipe(tokens()), backbone(tokens()), rtol=1e-4, atol=1e-5)


def test_a_classifier_starts_with_the_head_of_its_preset(hub, tmp_path):
    folder = str(tmp_path / 'classifier')
    plain = hub.models.BertTextClassifier(hub.models.BertBackbone(**BERT), num_classes=3, preprocessor=None)
    plain.save_to_preset(folder)
    kept = pipe_of(tokens(True), preset=folder, head='text_classifier')
    new = pipe_of(tokens(True), preset=folder, head='text_classifier', head_arguments={'num_classes': 5})
    np.testing.assert_allclose(kept(tokens(True)), plain(tokens(True)), rtol=1e-4, atol=1e-5)
    assert new(tokens(True)).shape == [4, 5]
    np.testing.assert_array_equal(new.model.backbone.weights[0], plain.backbone.weights[0])


@pytest.mark.parametrize('fields, words', [
    ({'head': 'causal'}, "head='causal' is unknown; did you mean causal_lm"),
    ({}, 'neither was given'),
    ({'preset': 'a', 'backbone': 'GPT2Backbone'}, 'both were given'),
    ({'backbone': 'GPT2Bakbone'}, 'did you mean GPT2Backbone'),
    ({'backbone': 'BertBackbone', 'backbone_arguments': BERT}, 'subclass of CausalLM that is compatible with BertBackbone'),
])
def test_what_is_no_model_is_refused(hub, fields, words):
    with pytest.raises(ValueError, match=words):
        hub_model.KerasHubModel.Params().Set(**fields).Instantiate().make()


def test_foreign_tokenizers_are_refused(tmp_path):
    gpt2, llama3, bert = (getattr(hub_presets, name)(tmp_path / name) for name in ('gpt2', 'llama3', 'bert'))
    tokenizers = {name: hub_tokenizer.KerasHubTokenizer.Params().Set(preset=str(tmp_path / name)).Instantiate()
                  for name in ('gpt2', 'llama3')}
    source = hub_model.KerasHubModel.Params().Set(preset=str(tmp_path / 'llama3')).Instantiate()
    source.check_tokenizer(llama3, tokenizers['llama3'])
    for model, tokenizer in ((llama3, tokenizers['gpt2']), (bert.backbone, tokenizers['gpt2']),
                             (gpt2, tokenization.ByteTokenizer.Params().Instantiate())):
        with pytest.raises(ValueError, match=r"input.tokenizer makes .* takes tokens of .* Set it to .*preset='/.*llama3'"):
            source.check_tokenizer(model, tokenizer)


def test_a_preset_is_a_pipeline_in_one_call(hub, preset, tmp_path):
    pipe = lingpipe.GPipeLayer.from_preset(preset[0], num_partitions=2, num_micro_batches=2, devices=['CPU:1', 'CPU:2'])
    plain = hub.models.CausalLM.from_preset(preset[0], preprocessor=None)
    model = lingpipe.PipelineModel(pipe)
    np.testing.assert_allclose(model.predict(tokens(), verbose=0), plain(tokens()), rtol=1e-4, atol=1e-5)
    assert {variable_placement.device_of(weight)[-5:] for weight in pipe.model.weights} == {'CPU:1', 'CPU:2'}
    model.save(tmp_path / 'model.keras')
    loaded = keras.saving.load_model(tmp_path / 'model.keras')
    np.testing.assert_allclose(loaded.predict(tokens(), verbose=0), plain(tokens()), rtol=1e-4, atol=1e-5)
