"""A layer whose table is that of an embedding of the same stack."""

from lingpipe import spelling
from lingpipe.layers import embedding


class TiedTable:
    """What a layer with the fields `tied_to` and `vocab_size` needs to use another layer's table (arXiv 1608.05859).

    Wherever that embedding lives, the pipeline sends the table to the partition of this layer, and its gradients back.
    Alone, as when it is analysed or exported, the layer makes a table of its own.
    """

    _tied_embedding = staticmethod(lambda: None)  # a function, since a layer as an attribute would count as a part of this one

    @staticmethod
    def define_field(p):
        """Adds the field `tied_to` to the Params of the layer."""
        p.Define('tied_to', None, 'Name of the TokenEmbedding whose table is used; None: a table of its own.')

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
        embeddings = [each for each, layer in layers.items() if isinstance(layer, embedding.TokenEmbedding)]
        if name not in embeddings:
            raise ValueError(f'{type(self).__name__}.tied_to is {name!r}, which is no TokenEmbedding of the stack'
                             f'{spelling.did_you_mean(str(name), embeddings)} Set it to the name of one, or to None.')
        self._tied_embedding = lambda: layers[name]

    @property
    def borrowed_variables(self):
        """List of the variables that count at another layer."""
        return [] if self.params.tied_to is None else [self.table]

    def shared_table(self, vocab_size, model_dim):
        """Returns the table of the embedding that this layer is tied to, or None where it is tied to none.

        Args:
            vocab_size: number of different tokens.
            model_dim: size of a vector.

        Raises:
            ValueError: the table has another shape.
        """
        tied = self._tied_embedding()
        if tied is None:
            return None
        if tuple(tied.table.shape) != (vocab_size, model_dim):
            raise ValueError(
                f'{type(self).__name__}.tied_to is {tied.name!r}, whose table has shape {tuple(tied.table.shape)}, but '
                f'{(vocab_size, model_dim)} is needed. Give both one vocab_size, or set tied_to to None.')
        return tied.table
