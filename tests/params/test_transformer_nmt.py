import pytest

from lingpipe import model_registry
from lingpipe.partition import layer_analysis

# L, H, A and partitions, and the range in millions that the published 400M, 1.3B, 3B and 6B allow with two or three
# tables of 64,000 vectors: GPipe (arXiv 1811.06965, section 5).
PUBLISHED = {
    'T6H8192A16': ((6, 8192, 16, 1), (408, 473)), 'T24H8192A16': ((24, 8192, 16, 4), (1238, 1304)),
    'T12H16384A32': ((12, 16384, 32, 2), (1238, 1304)), 'T32H16384A32': ((32, 16384, 32, 8), (3084, 3149)),
    'T64H16384A32': ((64, 16384, 32, 16), (6037, 6102))}


def params_of(name):
    return model_registry.GetParams(f'params.transformer_nmt.{name}', 'Train')


@pytest.mark.parametrize('name', PUBLISHED)
def test_the_number_of_parameters_is_in_the_published_range(name):
    (num_layers, hidden_dim, num_heads, num_partitions), (smallest, largest) = PUBLISHED[name]
    p = params_of(name)
    assert (p.task.body.num_partitions, len(p.task.body.layers)) == (num_partitions, 2 * num_layers + 3)
    assert {layer.attention.num_heads for layer in p.task.body.layers if 'attention' in layer} == {num_heads}
    layers = layer_analysis.analyse_layers(
        layer_analysis.named_layer_params(p.task.body.layers), p.input.cls.InputSpec(p.input))
    count, d, f, h = sum(layer.num_parameters for layer in layers), 1024, hidden_dim, 64 * num_heads
    assert count == num_layers * (12 * d * h + 9 * h + 4 * d * f + 2 * f + 15 * d) + 4 * d + 2 * 64_000 * d + 64_000
    assert smallest <= round(count / 1e6) <= largest


@pytest.mark.parametrize('name', ['T6H8192A16', 'SpokenNumbers'])
def test_the_task_knows_the_tokens_of_its_input(name):
    params = params_of(name)
    tokenizer, table = params.input.tokenizer.Instantiate(), params.task.body.layers[0]
    assert table.padding_id == params.task.end_id == tokenizer.end_id
    assert table.vocab_size >= tokenizer.vocab_size
