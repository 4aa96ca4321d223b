"""Transformers that translate, as a sequence of layers that a pipeline can cut anywhere."""

from lingpipe import spelling
from lingpipe.layers import encoder_decoder
from lingpipe.layers import positions as position_layers

SHARED_TABLES = ('none', 'embeddings', 'all')


def transformer_nmt_layers(
        num_layers, vocab_size, model_dim, hidden_dim, num_heads, dim_per_head=None, shared_tables='embeddings',
        logits_abs_max=None, activation='relu', padding_id=0, input_dropout_prob=0.0, residual_dropout_prob=0.0,
        atten_dropout_prob=0.0, relu_dropout_prob=0.0):
    """Returns an encoder and a decoder as the list of their units, from tokens to logits.

        source_embedding, encoder_0, ..., encoder_(L-1), target_embedding, decoder_0, ..., decoder_(L-1), softmax

    The input of the first layer is `{'source': [batch, source_length], 'target': [batch, target_length]}`, tokens; the
    target is what stands before each token that is to be predicted.

    It has L (12 d h + 9 h + 4 d f + 2 f + 15 d) + 4 d + T V d + V parameters, where h is the size of all heads together, d by
    default, and T of 1 to 3 the number of tables: the family T(L, f, A) of GPipe (arXiv 1811.06965, section 5), whose
    published counts ask for heads of size 64 with 16 and with 32 heads. After the same section feed-forward networks start
    smaller the deeper the network is (here by 1 / L, in the second of their layers), and logits may be clipped.

    Args:
        num_layers: number of blocks of the encoder, and of the decoder, L.
        vocab_size: number of different tokens, of both languages together, V.
        model_dim: size of the vectors between blocks, d.
        hidden_dim: size of the hidden layer of the feed-forward networks, f.
        num_heads: number of attention heads, A.
        dim_per_head: size of a head; None: d / A.
        shared_tables: 'none': three tables of vectors; 'embeddings': one for source and target, one for the softmax;
            'all': one for everything.
        logits_abs_max: largest magnitude of a logit; None: any.
        activation: see FeedForward.activation.
        padding_id: token that fills up sources.
        input_dropout_prob: drop-out of the sum of embedding and positions.
        residual_dropout_prob: drop-out of every branch.
        atten_dropout_prob: drop-out of the attention weights.
        relu_dropout_prob: drop-out of the hidden layers.

    Returns:
        A list of InstantiableParams with unique names.

    Raises:
        ValueError: `shared_tables` is none of SHARED_TABLES.
    """
    if shared_tables not in SHARED_TABLES:
        nearest = spelling.did_you_mean(str(shared_tables), SHARED_TABLES)
        raise ValueError(f'transformer_nmt_layers: shared_tables is {shared_tables!r}{nearest}')
    encoder = encoder_decoder.EncoderBlock.Params()
    decoder = encoder_decoder.DecoderBlock.Params()
    heads = {'num_heads': num_heads, 'dim_per_head': dim_per_head, 'atten_dropout_prob': atten_dropout_prob}
    decoder.cross_attention.Set(**heads)
    for block in (encoder, decoder):
        block.residual_dropout_prob = residual_dropout_prob
        block.attention.Set(**heads)
        block.feed_forward.Set(hidden_dim=hidden_dim, activation=activation, relu_dropout_prob=relu_dropout_prob,
                               output_scale=1 / num_layers)
    positions = position_layers.SinusoidalPositions.Params().Set(input_dropout_prob=input_dropout_prob)
    tables = {'vocab_size': vocab_size, 'model_dim': model_dim, 'positions': positions}
    return [
        encoder_decoder.SourceEmbedding.Params().Set(name='source_embedding', padding_id=padding_id, **tables),
        *[encoder.Copy().Set(name=f'encoder_{index}') for index in range(num_layers)],
        encoder_decoder.TargetEmbedding.Params().Set(
            name='target_embedding', tied_to=None if shared_tables == 'none' else 'source_embedding', **tables),
        *[decoder.Copy().Set(name=f'decoder_{index}') for index in range(num_layers)],
        encoder_decoder.TranslationHead.Params().Set(
            name='softmax', vocab_size=vocab_size, tied_to='source_embedding' if shared_tables == 'all' else None,
            logits_abs_max=logits_abs_max)]
