"""The end of a language model: from vectors to logits over the vocabulary."""

import keras

from lingpipe.layers import base_layer, embedding


class SoftmaxHead(base_layer.BaseLayer):
    """A layer norm and a product with one vector a token; the softmax itself is part of the loss.

    With `tied_to` these vectors are the table of an embedding of the same stack (arXiv 1608.05859), wherever that layer
    lives: the pipeline sends the table to the last partition and the gradients back.
    """

    @classmethod
    def Params(cls):
        p = super().Params()
        p.Define('vocab_size', None, 'Number of different tokens.')
        p.Define('tied_to', None, 'Name of the TokenEmbedding whose table is used; None: a table of its own.')
        p.Define('use_bias', True, 'Whether a bias for each token is added.')
        p.Define('norm_epsilon', 1e-6, 'Added to the variance in the layer norm.')
        return p

    def __init__(self, params, **kwargs):
        super().__init__(params, **kwargs)
        self.supports_masking = True
        if not isinstance(params.vocab_size, int) or params.vocab_size < 1:
            raise ValueError(f'SoftmaxHead.vocab_size is {params.vocab_size!r}; it must be an integer of at least 1. Set it.')
        self.norm = keras.layers.LayerNormalization(epsilon=params.norm_epsilon, name='norm', dtype=self.dtype_policy)
        self._tied_embedding = lambda: None  # a layer as an attribute would count as a part of this one

    def tie(self, layers):
        """Finds the embedding whose table is shared; a stack calls this before it is built.

        Args:
            layers: dictionary from name to layer of the same stack.

        Raises:
            ValueError: there is no such embedding.
        """
        name = self.params.tied_to
        if name is None:
            return
        if not isinstance(layers.get(name), embedding.TokenEmbedding):
            raise ValueError(f'SoftmaxHead.tied_to is {name!r}, which is no TokenEmbedding of the stack; its layers are '
                             f'{sorted(layers)}. Set it to the name of one, or to None.')
        self._tied_embedding = lambda: layers[name]

    @property
    def borrowed_variables(self):
        """List of the variables that count at another layer."""
        return [] if self.params.tied_to is None else [self.table]

    def build(self, input_shape):
        vocab_size, model_dim = self.params.vocab_size, input_shape[-1]
        self.norm.build(input_shape)
        tied = self._tied_embedding()
        if tied is None:  # alone, as when it is analysed or exported, a tied head has a table of its own too
            initializer = keras.initializers.RandomNormal(stddev=model_dim**-0.5)
            self.table = self.add_weight(name='table', shape=(vocab_size, model_dim), initializer=initializer)
        else:
            self.table = tied.table
        if tuple(self.table.shape) != (vocab_size, model_dim):
            raise ValueError(f'SoftmaxHead.tied_to is {tied.name!r}, whose table has shape {tuple(self.table.shape)}, but '
                             f'{(vocab_size, model_dim)} is needed. Give both one vocab_size, or set tied_to to None.')
        if self.params.use_bias:
            self.bias = self.add_weight(name='bias', shape=(vocab_size,), initializer='zeros')

    def call(self, inputs):
        """Maps `[batch, length, model_dim]` to logits `[batch, length, vocab_size]` of at least float32."""
        logits = keras.ops.einsum('btd,vd->btv', self.norm(inputs), self.table)
        if self.params.use_bias:
            logits += self.bias
        return keras.ops.cast(logits, keras.backend.result_type(logits.dtype, 'float32'))

    def compute_output_shape(self, input_shape):
        return *input_shape[:-1], self.params.vocab_size
