"""Which layers of a stack are alike, so that one program can be all of them."""

import tensorflow as tf

from lingpipe.pipeline import analysis


def longest_run(layer_params, specs):
    """Finds the longest run of layers with equal params whose outputs are shaped as their inputs.

    Args:
        layer_params: list of InstantiableParams of layers, in order; names do not count.
        specs: list of nests of `tf.TensorSpec` `[batch, ...]`: the input of the first layer, then the output of each.

    Returns:
        Pair of the index of the first layer of the run and the one that follows its last; of the first run among equals.
    """
    shapes = [str(tf.nest.map_structure(lambda spec: (spec.shape[1:], spec.dtype), nest)) for nest in specs]
    keys = [(analysis.identity(params), inputs) if inputs == outputs else None
            for params, inputs, outputs in zip(layer_params, shapes, shapes[1:])]
    best, start = (0, 0), 0
    for end in range(1, len(keys) + 1):
        if keys[end - 1] is None:
            start = end
        elif keys[end - 1] != keys[start]:
            start = end - 1
        if end - start > best[1] - best[0]:
            best = start, end
    return best
