"""The decoder of `benchmarks/support/decoder.py` in PyTorch: the same arithmetic, the same weights, the same batch."""

import json
import pathlib

import torch
from torch import nn
from torch.nn import functional

_KERAS_EPSILON = 1e-3


class DecoderBlock(nn.Module):
    """Causal self-attention and a feed-forward network, each after a layer norm and beside a skip.

    Queries, keys and values come from one matrix product and attention is PyTorch's fused one: its fastest way.

    Args:
        width: size of the vectors.
        num_heads: number of attention heads.
    """

    def __init__(self, width, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.norms = nn.ModuleList(nn.LayerNorm(width, eps=_KERAS_EPSILON) for _ in range(2))
        self.query_key_value = nn.Linear(width, 3 * width)
        self.attention_output = nn.Linear(width, width)
        self.hidden = nn.Linear(width, 4 * width)
        self.output_projection = nn.Linear(4 * width, width)

    def forward(self, inputs):
        inputs = inputs + self._attention(self.norms[0](inputs))
        return inputs + self.output_projection(functional.gelu(self.hidden(self.norms[1](inputs))))

    def _attention(self, normed):
        heads = self.query_key_value(normed).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*heads, is_causal=True)
        return self.attention_output(mixed.transpose(1, 2).flatten(2))

    def weights(self):
        """Return views of the parameters in the order and the layout of the Keras layer."""
        norms = [weight for norm in self.norms for weight in (norm.weight, norm.bias)]
        thirds = zip(self.query_key_value.weight.chunk(3), self.query_key_value.bias.chunk(3))
        attention = [view for kernel, bias in thirds for view in (kernel.t(), bias)]
        dense = [self.attention_output, self.hidden, self.output_projection]
        return [*norms, *attention, *[view for layer in dense for view in _dense_weights(layer)]]


class Problem:
    """The model, batch and loss that LingPipe wrote to a folder.

    Attributes:
        sizes: dictionary of the model's sizes.
        layers: list of modules.
        x: tokens `[batch_size, sequence_length]`.
        y_true: the same, what is to be predicted.

    Args:
        folder: where `lingpipe_step.write_problem` wrote.
    """

    def __init__(self, folder):
        folder = pathlib.Path(folder)
        self.sizes = sizes = json.loads((folder / 'problem.json').read_text())
        self.layers = [nn.Embedding(sizes['vocabulary_size'], sizes['width']),
                       *[DecoderBlock(sizes['width'], sizes['num_heads']) for _ in range(sizes['num_blocks'])],
                       nn.Linear(sizes['width'], sizes['vocabulary_size'])]
        _load(self.layers, torch.frombuffer(bytearray((folder / 'weights').read_bytes()), dtype=torch.float32))
        tokens = torch.frombuffer(bytearray((folder / 'tokens').read_bytes()), dtype=torch.int32).long()
        self.x, self.y_true = tokens.view(2, sizes['batch_size'], sizes['sequence_length'])

    def num_parameters(self):
        """Return the number of trainable numbers."""
        return sum(parameter.numel() for layer in self.layers for parameter in layer.parameters())

    def stages(self, ends):
        """Return the layers cut into one `nn.Sequential` for each of the indices at which a stage ends."""
        return [nn.Sequential(*self.layers[start:end]) for start, end in zip([0, *ends], ends)]


def loss_fn(logits, y_true):
    """Return the mean cross-entropy over examples and tokens."""
    return functional.cross_entropy(logits.flatten(0, 1), y_true.flatten())


def _dense_weights(layer):
    return [layer.weight.t(), layer.bias]


def _load(layers, values):
    embedding, *blocks, vocabulary = layers
    weights = [embedding.weight, *[view for block in blocks for view in block.weights()], *_dense_weights(vocabulary)]
    with torch.no_grad():
        for weight, part in zip(weights, values.split([weight.numel() for weight in weights])):
            weight.copy_(part.view(weight.shape))
