import numpy as np
import pytest
import tensorflow as tf

import lingpipe
from lingpipe.layers import embeddings, transformer
from lingpipe.partition import layer_analysis
from tests.layers import stacks
from tests.layers import transformer_reference as reference

X = np.random.default_rng(1).normal(size=(2, 5, 8)).astype(np.float32)
TOKENS = tf.constant(np.random.default_rng(3).integers(1, 11, (6, 5)), tf.int32)


def built(params, shape=(None, 5, 8)):
    layer = params.Set(name='layer').Instantiate()
    layer.build(shape)
    rng = np.random.default_rng(0)
    layer.set_weights([rng.normal(size=weight.shape) / 2 for weight in layer.get_weights()])
    return layer


def block_params(**fields):
    p = transformer.TransformerBlock.Params().Set(**fields)
    p.attention.Set(num_heads=2)
    p.feed_forward.Set(hidden_dim=16)
    return p


def small_layers(num_layers=2, **fields):
    return transformer.transformer_lm_layers(
        num_layers, vocab_size=11, model_dim=8, hidden_dim=16, num_heads=2, **fields)


def make_pipe(layers, num_partitions):
    return stacks.make_pipe(layers, tf.TensorSpec(TOKENS.shape, tf.int32), num_partitions)


def test_a_block_is_that_of_the_formula():
    layer = built(block_params())
    weights = {name: getattr(layer, name).get_weights()
               for name in ('attention_norm', 'attention', 'feed_forward_norm', 'feed_forward')}
    np.testing.assert_allclose(layer(X), [reference.block(x, weights, 2) for x in X], atol=1e-4)


def test_drop_out_stands_in_both_branches_and_in_the_hidden_layer():
    everything = built(block_params(residual_dropout_prob=1 - 1e-7))
    np.testing.assert_allclose(everything(X, training=True), X, atol=1e-5)
    params = block_params()
    params.feed_forward.relu_dropout_prob = 0.5
    layer = built(params)
    assert not np.allclose(layer(X, training=True), layer(X))


def test_tokens_get_the_rows_of_the_table():
    layer = built(embeddings.TokenEmbedding.Params().Set(vocab_size=11, model_dim=4, padding_id=0), (None, 5))
    np.testing.assert_allclose(layer(TOKENS), 2 * layer.get_weights()[0][TOKENS.numpy()], rtol=1e-6)
    np.testing.assert_array_equal(layer.compute_mask(tf.constant([[3, 0, 1]])), [[True, False, True]])


def test_sinusoidal_positions_by_the_formula():
    added = embeddings.SinusoidalPositions.Params().Instantiate()(np.zeros([1, 5, 8], np.float32))
    for t in range(5):
        for i in range(4):
            angle = t / 10_000 ** (i / 4)
            np.testing.assert_allclose([added[0, t, i], added[0, t, i + 4]], [np.sin(angle), np.cos(angle)], atol=1e-6)


def test_learned_positions_are_added_from_any_start():
    layer = built(embeddings.LearnedPositions.Params().Set(max_length=9))
    table = layer.get_weights()[0]
    np.testing.assert_allclose(layer(X), X + table[:5], rtol=1e-5)
    np.testing.assert_allclose(layer(X, start=4), X + table[4:], rtol=1e-5)
    with pytest.raises(ValueError, match='max_length is 4, but sequences have 5'):
        embeddings.LearnedPositions.Params().Set(max_length=4).Instantiate().build((None, 5, 8))


@pytest.mark.parametrize('kind', transformer.POSITIONS)
def test_the_future_is_not_seen(kind):
    stack = [params.Instantiate() for params in small_layers(1, positions=kind, max_length=5)]
    changed = TOKENS.numpy()
    changed[:, 3] = 11 - changed[:, 3]
    before, after = (stacks.run(stack, tokens).numpy() for tokens in (TOKENS, changed))
    np.testing.assert_allclose(before[:, :3], after[:, :3], atol=1e-6)
    assert not np.allclose(before[:, 3:], after[:, 3:], atol=1e-3)


def test_padding_is_masked_in_every_block_on_every_partition():
    layers = small_layers()
    layers[0].padding_id = 0
    for block in layers[2:-1]:
        block.attention.is_causal = False
    pipe = make_pipe(layers, 2)
    padded = tf.pad(TOKENS[:, :3], [[0, 0], [0, 2]])
    np.testing.assert_allclose(pipe(padded)[:, :3], stacks.run(pipe.stack, TOKENS[:, :3]), atol=1e-5)


def test_a_tied_table_gets_the_gradients_of_both_its_uses():
    pipe = make_pipe(small_layers(1, is_tied=True), 3)
    assert sum(variable.name == 'table' for variable in pipe.trainable_variables) == 1
    stacks.assert_gradients_are_those_of_the_layers(pipe, TOKENS, TOKENS)


@pytest.mark.parametrize('is_tied', [True, False])
def test_a_tied_table_counts_once(is_tied):
    pipe = make_pipe(small_layers(is_tied=is_tied), 2)
    analyses = layer_analysis.analyse_layers(
        layer_analysis.named_layer_params(small_layers(is_tied=is_tied)), tf.TensorSpec([1, 5], tf.int32))
    count = sum(np.prod(variable.shape) for variable in pipe.trainable_variables)
    assert sum(layer.num_parameters for layer in analyses) == count
    assert sum(part.num_parameters for part in pipe.partitions) == count


def test_what_a_softmax_cannot_be_tied_to_is_named():
    layers = small_layers(is_tied=True)
    layers[-1].tied_to = 'block_0'
    with pytest.raises(ValueError, match="tied_to is 'block_0', which is not a TokenEmbedding of the stack; there are: "
                                         "embedding. Set it"):
        lingpipe.GPipeLayer.Params().Set(name='pipe', layers=layers).Instantiate()
    with pytest.raises(ValueError, match='whose table has shape .* is needed'):
        head = embeddings.SoftmaxHead.Params().Set(vocab_size=5, tied_to='table').Instantiate()
        head.tie({'table': built(embeddings.TokenEmbedding.Params().Set(vocab_size=11, model_dim=8), (None, 5))})
        head.build((None, 5, 8))


@pytest.mark.parametrize('params', [
    embeddings.TokenEmbedding.Params(), embeddings.TokenEmbedding.Params().Set(vocab_size=3, model_dim=0),
    embeddings.SoftmaxHead.Params(), transformer.FeedForward.Params().Set(hidden_dim=2.5)])
def test_sizes_that_are_missing_or_wrong_are_refused(params):
    with pytest.raises(ValueError, match='must be an integer of at least 1. Set it'):
        params.Instantiate()


def test_mixed_bfloat16_passes_bfloat16_vectors_and_float32_logits():
    for kind in transformer.POSITIONS:
        layers = [p.Set(dtype_policy='mixed_bfloat16') for p in small_layers(
            1, positions=kind, max_length=5, atten_dropout_prob=0.1)]
        outputs = [TOKENS]
        for params in layers:
            outputs.append(params.Instantiate()(outputs[-1], training=True))
        assert [x.dtype for x in outputs[1:]] == [tf.bfloat16] * 3 + [tf.float32]
