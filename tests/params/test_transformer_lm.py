import pytest

from lingpipe import model_registry
from lingpipe.partition import layer_analysis

# Layers, partitions and parameters: table 1 of GPipe (arXiv 1811.06965), and the size that its announcement names.
PUBLISHED = {
    'Transformer3': (3, 1, '282.2M'), 'Transformer13': (13, 1, '785.8M'), 'Transformer103': (103, 8, '5.3B'),
    'Transformer157': (157, 16, '8.0B'), 'Transformer415': (415, 32, '21.0B'), 'Transformer1663': (1663, 128, '83.9B')}


def params_of(name):
    return model_registry.GetParams(f'params.transformer_lm.{name}', 'Train')


@pytest.mark.parametrize('name', PUBLISHED)
def test_the_number_of_parameters_is_the_published_one(name):
    num_layers, num_partitions, published = PUBLISHED[name]
    p = params_of(name)
    assert (p.task.body.num_partitions, len(p.task.body.layers)) == (num_partitions, num_layers + 3)
    layers = layer_analysis.analyse_layers(
        layer_analysis.named_layer_params(p.task.body.layers), p.input.cls.InputSpec(p.input))
    count = sum(layer.num_parameters for layer in layers)
    d, f, v = 2048, 8192, 32_000
    assert count == num_layers * (4 * d * d + 2 * d * f + 9 * d + f) + 2 * v * d + v + 2 * d
    assert published == (f'{count / 1e6:.1f}M' if count < 1e9 else f'{count / 1e9:.1f}B')


@pytest.mark.parametrize('name', ['PydocBytes', 'Transformer13'])
def test_every_token_has_a_row_in_the_table(name):
    params = params_of(name)
    assert params.task.body.layers[0].vocab_size >= params.input.tokenizer.Instantiate().vocab_size
