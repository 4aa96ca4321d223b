"""What one program for all cores would cost for blocks that are alike but for their sizes, were they padded to one size.

    python -m benchmarks.tpu.padded_blocks

Nothing runs. Such blocks have equal params but for the number of filters, and outputs shaped as their inputs. Padded,
each has the most filters and the largest images of all. Floating-point operations are those of LingPipe's own analysis,
of the forward pass of one example.
"""

import collections

import tensorflow as tf
from absl import app, flags

from benchmarks.support import common
from lingpipe import model_registry
from lingpipe.partition import layer_analysis

_MODELS = flags.DEFINE_list(
    'models', ['params.resnet50.ResNet50Batch1024', 'params.amoebanet.AmoebaNetD18x256'],
    "Models, as for run.py's --model.")
_SIZES = ('filters',)
_HEADER = ['model', 'blocks', 'filters', 'GFLOP', 'GFLOP padded', 'factor']


def blocks_alike_but_for_sizes(layer_params, input_specs):
    """Finds the largest set of such blocks.

    Args:
        layer_params: list of InstantiableParams of Keras layers, in order.
        input_specs: nest of `tf.TensorSpec` `[batch, ...]` of the input.

    Returns:
        List of triples of the params, the nest of the specs of the input, and the `Flops` of each.
    """
    analyses = layer_analysis.analyse_layers(layer_params, input_specs)
    inputs = [tf.nest.map_structure(lambda spec: tf.TensorSpec([1, *spec.shape[1:]], spec.dtype), input_specs),
              *[each.outputs for each in analyses[:-1]]]
    sets = collections.defaultdict(list)
    for params, specs, analysis in zip(layer_params, inputs, analyses):
        if str(specs) == str(analysis.outputs):
            sets[layer_analysis.identity(_with_sizes(params, [None] * len(_SIZES)))].append(
                (params, specs, analysis.flops))
    return max(sets.values(), key=lambda blocks: sum(flops.total for *_, flops in blocks))


def padded(blocks):
    """Returns the `Flops` of each block once all have one size."""
    sizes = [max(values) for values in zip(*map(_sizes, blocks))]
    specs = tf.nest.map_structure(_largest, *[specs for _, specs, _ in blocks])
    analysis, = layer_analysis.analyse_layers([_with_sizes(blocks[0][0], sizes)], specs)
    return analysis.flops


def _sizes(block):
    return [block[0].Get(field) for field in _SIZES if field in block[0]]


def _with_sizes(params, sizes):
    params = params.Copy()
    return params.Set(**{field: size for field, size in zip(_SIZES, sizes) if field in params})


def _largest(*specs):
    return tf.TensorSpec([max(sizes) for sizes in zip(*[spec.shape for spec in specs])], specs[0].dtype)


def _row(model):
    params = model_registry.GetParams(model, 'Train')
    layers = [layer for layer in layer_analysis.named_layer_params(params.task.body.layers)
              if layer.name != 'auxiliary_head']  # or later blocks would have its logits to hand on
    blocks = blocks_alike_but_for_sizes(layers, params.input.cls.InputSpec(params.input))
    flops, whole = sum(flops.total for *_, flops in blocks), len(blocks) * padded(blocks).total
    counts = collections.Counter(' '.join(map(str, _sizes(block))) for block in blocks)
    sizes = ', '.join(f'{count} of {size}' for size, count in counts.items())
    return [model, len(blocks), sizes, f'{flops / 1e9:.1f}', f'{whole / 1e9:.1f}', f'{whole / flops:.1f}']


def main(unused_argv):
    common.report(common.markdown_table(_HEADER, list(map(_row, _MODELS.value))))


if __name__ == '__main__':
    app.run(main)
