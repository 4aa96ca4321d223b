import keras
import numpy as np
import pytest
import tensorflow as tf

from lingpipe.layers import attention, embeddings, translation
from tests.layers import stacks

RNG = np.random.default_rng(0)
BATCH = {'source': tf.constant(RNG.integers(1, 11, (4, 6)), tf.int32), 'target': tf.constant(
    RNG.integers(1, 11, (4, 5)), tf.int32)}


def small_layers(**fields):
    return translation.transformer_nmt_layers(
        num_layers=1, vocab_size=11, model_dim=8, hidden_dim=16, num_heads=2, **fields)


def make_pipe(layers):
    return stacks.make_pipe(layers, {name: tf.TensorSpec(part.shape, tf.int32) for name, part in BATCH.items()}, 3)


@pytest.fixture(scope='module')
def pipe():
    return make_pipe(small_layers())


def with_part(name, rows):
    return {**BATCH, name: tf.constant(rows, tf.int32)}


def test_cross_attention_is_that_of_keras():
    layer = attention.CrossAttention.Params().Set(name='layer', num_heads=2).Instantiate()
    target, source = (RNG.normal(size=(3, length, 8)).astype(np.float32) for length in (4, 6))
    mask = RNG.random((3, 6)) < 0.7
    layer.build(target.shape)
    layer.set_weights([RNG.normal(size=weight.shape) for weight in layer.get_weights()])
    theirs = keras.layers.MultiHeadAttention(2, 4)
    theirs.build(target.shape, source.shape)
    kernel, bias, both_kernel, both_bias, output_kernel, output_bias = layer.get_weights()
    (key, value), (key_bias, value_bias) = np.split(both_kernel, 2, 1), np.split(both_bias, 2)
    theirs.set_weights([part.reshape(shape.shape) for part, shape in zip(
        [kernel, bias, key, key_bias, value, value_bias, output_kernel, output_bias], theirs.get_weights())])
    expected = theirs(target, source, attention_mask=mask[:, None, :])
    np.testing.assert_allclose(layer(target, source=source, source_mask=mask), expected, atol=1e-5)


def test_a_target_sees_its_past_and_all_of_its_source(pipe):
    before = pipe(BATCH).numpy()
    changed = BATCH['target'].numpy()
    changed[:, 3] = 11 - changed[:, 3]
    after = pipe(with_part('target', changed)).numpy()
    np.testing.assert_allclose(before[:, :3], after[:, :3], atol=1e-6)
    assert not np.allclose(before[:, 3:], after[:, 3:], atol=1e-3)
    changed = BATCH['source'].numpy()
    changed[:, 5] = 11 - changed[:, 5]
    assert (np.abs(pipe(with_part('source', changed)).numpy() - before).max(-1) > 1e-4).all()


def test_padding_of_source_and_target_changes_nothing(pipe):
    padded = {name: tf.pad(part, [[0, 0], [0, 3]]) for name, part in BATCH.items()}
    np.testing.assert_allclose(stacks.run(pipe.stack, padded)[:, :5], pipe(BATCH), atol=1e-5)


@pytest.mark.parametrize('is_tied', [True, False])
def test_shared_tables_are_one_variable(is_tied):
    pipe = make_pipe(small_layers(is_tied=is_tied))
    count = sum(np.prod(variable.shape) for variable in pipe.trainable_variables)
    assert sum(part.num_parameters for part in pipe.partitions) == count
    tables = [variable.name for variable in pipe.trainable_variables].count('table')
    assert tables == (1 if is_tied else 2)
    d, f = 8, 16
    assert count == (12 * d * d + 4 * d * f + 2 * f + 24 * d) + 4 * d + tables * 11 * d + 11


def test_gradients_are_those_of_the_plain_layers(pipe):
    stacks.assert_gradients_are_those_of_the_layers(pipe, BATCH, BATCH['target'])


def test_feed_forward_networks_start_smaller_the_deeper_the_network():
    def deviation(num_layers):
        params = translation.transformer_nmt_layers(num_layers, 11, 64, 256, 2)
        layer = params[1].feed_forward.Instantiate()
        layer.build((None, 3, 64))
        return float(keras.ops.std(layer.output_projection.kernel))

    assert deviation(1) / deviation(10) == pytest.approx(10, rel=0.1)


def test_logits_keep_within_bounds():
    head = translation.TranslationHead.Params().Set(vocab_size=11, logits_abs_max=0.5).Instantiate()
    inputs = {'target': RNG.normal(size=(2, 5, 8)).astype(np.float32)}
    logits, free = head(inputs), embeddings.SoftmaxHead.call(head, inputs['target']).numpy()
    assert np.abs(free).max() > 0.5
    np.testing.assert_allclose(logits, free.clip(-0.5, 0.5), atol=1e-6)


def test_mixed_bfloat16_passes_bfloat16_vectors_and_boolean_masks():
    layers = [p.Set(dtype_policy='mixed_bfloat16') for p in small_layers()]
    outputs = stacks.run([p.Instantiate() for p in layers[:-1]], BATCH)
    assert {name: part.dtype.name for name, part in outputs.items()} == {
        'source': 'bfloat16', 'source_mask': 'bool', 'target': 'bfloat16'}
    assert layers[-1].Instantiate()(outputs).dtype == tf.float32


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match='CrossAttention.num_heads is 3, but vectors have 8'):
        attention.CrossAttention.Params().Set(num_heads=3).Instantiate().build((None, 5, 8))
    layer = translation.TargetEmbedding.Params().Set(vocab_size=3, model_dim=4, tied_to='decoder').Instantiate()
    with pytest.raises(ValueError,
                       match="TargetEmbedding.tied_to is 'decoder', which is not a TokenEmbedding of the stack"):
        layer.tie({})
    table = translation.SourceEmbedding.Params().Set(name='decoder', vocab_size=5, model_dim=4).Instantiate()
    table.build({'source': (None, 5), 'target': (None, 5)})
    layer.tie({'decoder': table})
    with pytest.raises(ValueError, match='whose table has shape .* is needed'):
        layer.build({'source': (None, 5, 4), 'target': (None, 5), 'source_mask': (None, 5)})
