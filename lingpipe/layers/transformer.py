"""Transformer language models, as a sequence of layers that a pipeline can cut anywhere."""

from lingpipe import spelling
from lingpipe.layers import embedding, softmax_head, transformer_block
from lingpipe.layers import positions as position_layers

POSITIONS = ('learned', 'none', 'rotary', 'sinusoidal')


def transformer_lm_layers(
        num_layers, vocab_size, model_dim, hidden_dim, num_heads, positions='sinusoidal', max_length=None, is_tied=False,
        activation='gelu', is_gated=False, use_bias=True, input_dropout_prob=0.0, residual_dropout_prob=0.0,
        atten_dropout_prob=0.0, relu_dropout_prob=0.0):
    """Returns a decoder-only Transformer as the list of its units, from tokens to logits.

        embedding, positions, block_0, ..., block_(L-1), softmax

    With the defaults it has L (4 d^2 + 2 d f + 9 d + f) + 2 V d + V + 2 d parameters, where d is `model_dim`, f
    `hidden_dim` and V `vocab_size`: GPipe's Transformer-L (arXiv 1811.06965, table 1).

    Args:
        num_layers: number of blocks, L.
        vocab_size: number of different tokens, V.
        model_dim: size of the vectors between blocks, d.
        hidden_dim: size of the hidden layer of the feed-forward networks, f.
        num_heads: number of attention heads.
        positions: one of POSITIONS.
        max_length: longest sequence, for learned positions.
        is_tied: whether the softmax shares the table of the embedding.
        activation: see FeedForward.activation.
        is_gated: see FeedForward.is_gated.
        use_bias: whether dense layers and the softmax have biases.
        input_dropout_prob: drop-out of the sum of embedding and positions.
        residual_dropout_prob: drop-out of every branch.
        atten_dropout_prob: drop-out of the attention weights.
        relu_dropout_prob: drop-out of the hidden layers.

    Returns:
        A list of InstantiableParams with unique names. The input of the first layer is tokens `[batch, length]`.

    Raises:
        ValueError: `positions` is none of POSITIONS.
    """
    branch_scale = (2 * num_layers) ** -0.5  # the sum of all branches starts as large as the input (GPT-2, section 2.3)
    block = transformer_block.TransformerBlock.Params().Set(residual_dropout_prob=residual_dropout_prob)
    block.attention.Set(
        num_heads=num_heads, use_rotary_positions=positions == 'rotary', use_bias=use_bias,
        atten_dropout_prob=atten_dropout_prob, output_scale=branch_scale)
    block.feed_forward.Set(
        hidden_dim=hidden_dim, activation=activation, is_gated=is_gated, use_bias=use_bias,
        relu_dropout_prob=relu_dropout_prob, output_scale=branch_scale)
    return [
        embedding.TokenEmbedding.Params().Set(name='embedding', vocab_size=vocab_size, model_dim=model_dim),
        _positions_params(positions, max_length).Set(name='positions', input_dropout_prob=input_dropout_prob),
        *[block.Copy().Set(name=f'block_{index}') for index in range(num_layers)],
        softmax_head.SoftmaxHead.Params().Set(
            name='softmax', vocab_size=vocab_size, tied_to='embedding' if is_tied else None, use_bias=use_bias)]


def _positions_params(kind, max_length):
    if kind == 'learned':
        return position_layers.LearnedPositions.Params().Set(max_length=max_length)
    if kind == 'sinusoidal':
        return position_layers.SinusoidalPositions.Params()
    if kind in POSITIONS:
        return position_layers.NoPositions.Params()
    raise ValueError(f'transformer_lm_layers: positions is {kind!r}{spelling.did_you_mean(str(kind), POSITIONS)}')
