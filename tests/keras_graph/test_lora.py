"""LoRA over two partitions: compared with KerasHub's own `enable_lora` on one device."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import lingpipe
from lingpipe import schedules
from lingpipe.devices import variable_placement
from lingpipe.keras_graph import hub_model, lora, model_source
from lingpipe.planner import plans, resolution
from tests import needs

pytestmark = needs.keras_hub
SIZES = {'vocabulary_size': 20, 'num_layers': 2, 'num_query_heads': 2, 'num_key_value_heads': 1, 'hidden_dim': 8,
         'intermediate_dim': 16, 'head_dim': 4}
TOKENS = {'token_ids': np.random.default_rng(0).integers(1, 20, [4, 8], 'int32'), 'padding_mask': np.ones([4, 8], bool)}
WANTED = np.random.default_rng(1).normal(size=[4, 8, 8]).astype('float32')
CLASSES = np.random.default_rng(2).integers(0, 20, [4, 8])
DEVICES = ['CPU:1', 'CPU:2']
PARTS = ('lora_kernel_a', 'lora_kernel_b')


def twins(hub):
    """Return two backbones with the same random weights."""
    both = [hub.models.GemmaBackbone(**SIZES) for _ in range(2)]
    copy_weights(*both)
    return both


def copy_weights(source, target):
    for variable, copy in zip(source.variables, target.variables):
        copy.assign(variable)


def planned(**fields):
    """Return the partitions of a plan for two devices and Adam."""
    p = lingpipe.GPipeLayer.Params().Set(
        name='body', num_partitions=2, num_micro_batches=2, partition_by=[2, 4], recompute='none',
        model=model_source.KerasModelParams(dense_model).Set(**fields))
    setting = resolution.make_setting(p, tf.TensorSpec([4, 6]))
    return plans.make_plan(setting, schedules.make_schedule('gpipe', 2, 2), 'none', p.partition_by).partitions


def names_of(variables):
    return {variable.path.rsplit('/', 1)[1] for variable in variables}


def trained(model, x, y, loss='mse', num_steps=3):
    model.compile(keras.optimizers.Adam(0.01), loss)
    return [np.ravel(model.train_on_batch(x, y))[0] for _ in range(num_steps)]


@pytest.mark.parametrize('order', [pytest.param('before', marks=pytest.mark.slow), 'after'])
def test_lora_trains_as_in_plain_keras(hub, order):
    plain, source = twins(hub)
    if order == 'before':
        source.enable_lora(4)
    pipe = lingpipe.GPipeLayer.from_keras(source, num_partitions=2, num_micro_batches=2, devices=DEVICES)
    if order == 'after':
        source.enable_lora(4)
    plain.enable_lora(4)
    copy_weights(source, plain)
    model = lingpipe.PipelineModel(pipe)
    np.testing.assert_allclose(trained(model, TOKENS, WANTED), trained(plain, TOKENS, WANTED), rtol=1e-5)
    assert len(pipe.trainable_variables) == 8 and names_of(pipe.trainable_variables) == set(PARTS)
    for found, expected in zip(source.weights, plain.weights):
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)
    slots = [variable for variable in model.optimizer.variables if len(variable.shape)]
    assert len(slots) == 2 * 8
    for parts in (pipe.trainable_variables, slots):
        assert {variable_placement.device_of(part)[-5:] for part in parts} == set(DEVICES)


def test_lora_after_training_began_needs_a_new_optimizer(hub):
    source, _ = twins(hub)
    pipe = lingpipe.GPipeLayer.from_keras(source, num_partitions=2, num_micro_batches=2, devices=DEVICES)
    model = lingpipe.PipelineModel(pipe)
    losses = trained(model, TOKENS, WANTED)
    source.enable_lora(2)
    with pytest.raises(ValueError, match="such as 'decoder_block_0/attention/query/lora_kernel_a'.*Call compile with a new"):
        model.train_on_batch(TOKENS, WANTED)
    assert trained(model, TOKENS, WANTED)[-1] < losses[-1]
    assert names_of(pipe.trainable_variables) == set(PARTS)


def test_saved_weights_are_merged_and_leave_something_to_learn(hub, tmp_path):
    source, plain = twins(hub)
    pipe = lingpipe.GPipeLayer.from_keras(source, num_partitions=2, num_micro_batches=2, devices=DEVICES)
    source.enable_lora(2)
    model = lingpipe.PipelineModel(pipe)
    losses = trained(model, TOKENS, WANTED)
    outputs = model.predict(TOKENS, verbose=0)
    model.save_weights(tmp_path / 'model.weights.h5')
    for each in (plain, model):
        each.load_weights(tmp_path / 'model.weights.h5')
        np.testing.assert_allclose(each.predict(TOKENS, verbose=0), outputs, rtol=1e-4, atol=1e-5)
    assert names_of(pipe.trainable_variables) == set(PARTS)
    assert trained(model, TOKENS, WANTED)[-1] < losses[-1]


def test_a_preset_with_lora_starts_from_its_weights(hub, tmp_path):
    backbone, _ = twins(hub)
    backbone.save_to_preset(str(tmp_path / 'preset'))
    pipe = lingpipe.GPipeLayer.from_preset(
        str(tmp_path / 'preset'), lora_rank=4, num_partitions=2, num_micro_batches=2, devices=DEVICES)
    plain = hub.models.CausalLM.from_preset(str(tmp_path / 'preset'), preprocessor=None)
    model = lingpipe.PipelineModel(pipe)
    np.testing.assert_allclose(model.predict(TOKENS, verbose=0), plain(TOKENS), rtol=1e-4, atol=1e-5)
    before = [part.numpy() for part in pipe.trainable_variables]
    assert all(np.any(value) == ('_a' in part.path) for part, value in zip(pipe.trainable_variables, before))
    plain.backbone.enable_lora(4)
    copy_weights(pipe.model, plain)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    np.testing.assert_allclose(
        trained(model, TOKENS, CLASSES, loss), trained(plain, TOKENS, CLASSES, loss), rtol=1e-5)
    model.save(tmp_path / 'model.keras')
    pipe.model.save_to_preset(str(tmp_path / 'trained'))
    outputs = model.predict(TOKENS, verbose=0)
    for loaded in (keras.saving.load_model(tmp_path / 'model.keras'),
                   hub.models.CausalLM.from_preset(str(tmp_path / 'trained'), preprocessor=None)):
        np.testing.assert_allclose(loaded.predict(TOKENS, verbose=0), outputs, rtol=1e-4, atol=1e-5)


def dense_model():
    model = keras.Sequential([
        keras.Input([6]), keras.layers.Dense(8, activation='gelu', name='first'),
        keras.layers.BatchNormalization(name='norm'), keras.layers.Dense(8, activation='gelu', name='second'),
        keras.layers.Dense(3, name='last')], name='small')
    for number, variable in enumerate(model.weights):
        variable.assign(np.random.default_rng(number).uniform(0.5, 1, variable.shape))
    return model


def dense_pipe(**fields):
    params = model_source.KerasModelParams(dense_model).Set(**fields)
    pipe = lingpipe.GPipeLayer.Params().Set(
        name='body', num_partitions=2, num_micro_batches=2, devices=DEVICES, model=params).Instantiate()
    pipe.build_from_specs(tf.TensorSpec([4, 6]))
    return pipe


def test_layers_of_any_keras_model_get_lora():
    pipe = dense_pipe(lora_rank=2, lora_layers=['first', 'la.t'], trainable=['second/bias'])
    plain = dense_model()
    for name in ('first', 'norm', 'second', 'last'):
        plain.get_layer(name).trainable = name in ('first', 'last')
        if name in ('first', 'last'):
            plain.get_layer(name).enable_lora(2)
            plain.get_layer(name).bias.trainable = False
    plain.get_layer('second').bias.trainable = True
    plain.get_layer('second').trainable = True
    plain.get_layer('second').kernel.trainable = False
    copy_weights(pipe.model, plain)
    x, y = np.random.default_rng(0).normal(size=[4, 6]), np.zeros([4, 3])
    model = lingpipe.PipelineModel(pipe)
    np.testing.assert_allclose(trained(model, x, y), trained(plain, x, y), rtol=1e-5)
    for found, expected in zip(pipe.model.weights, plain.weights):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_a_plan_counts_slots_gradients_and_activations_of_what_is_trained():
    first, last = planned(lora_rank=2, lora_layers=['last'])
    assert first.slots == first.gradients == 0 and last.gradients == 4 * (8 * 2 + 2 * 3)
    assert last.slots == 2 * last.gradients
    trained, _ = planned()
    assert trained.weights == first.weights and trained.working > first.working > 0


def test_a_backbone_without_queries_and_values_names_its_attention():
    source = hub_model.KerasHubModel.Params().Set(lora_rank=4, backbone='GPTNeoXBackbone', backbone_arguments={
        'vocabulary_size': 20, 'num_layers': 2, 'num_heads': 2, 'hidden_dim': 8, 'intermediate_dim': 16})
    with pytest.raises(ValueError, match='knows none of .gpt_neo_x_causal_lm..*query_key_value'):
        model_source.make_model(source.Instantiate())


@pytest.mark.parametrize('fields, words', [
    ({'lora_rank': 0, 'lora_layers': ['first']}, 'lora_rank=0 is not a valid rank'),
    ({'lora_layers': ['first']}, 'without lora_rank'),
    ({'lora_rank': 2}, "knows none of.*'first'"),
    ({'lora_rank': 2, 'lora_layers': ['fist']}, "lora_layers: 'fist' matches nothing"),
    ({'trainable': 'second'}, 'is not a list of regular expressions'),
    ({'trainable': []}, 'leaves nothing to train'),
])
def test_what_cannot_be_trained_so_is_refused(fields, words):
    with pytest.raises(ValueError, match=words):
        dense_pipe(**fields)


def test_what_is_merged_keeps_its_precision_and_is_as_before_afterwards():
    model = keras.Sequential([keras.Input([6]), keras.layers.Dense(8, dtype='mixed_bfloat16')])
    layer = model.layers[0]
    kernel = layer.kernel.numpy()
    layer.enable_lora(2, lora_alpha=4)
    layer.lora_kernel_b.assign(np.ones([2, 8]))
    parts = [variable.path for variable in model.variables]
    with lora.merged(model):
        np.testing.assert_allclose(
            layer.kernel, kernel + 2 * layer.lora_kernel_a.numpy() @ np.ones([2, 8]), rtol=1e-6, atol=1e-6)
        assert len(model.variables) == 2 and 'lora_rank' not in layer.get_config()
    np.testing.assert_array_equal(layer._kernel, kernel)
    assert [variable.path for variable in model.variables] == parts and layer.lora_rank == 2
