"""Checks that refuse models whose tensors lose the batch, since micro-batches would change their results."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from lingpipe.stages import control_flow, graph_pieces

_ROWS = 4
_CUT = 1
_TOLERANCE, _TOLERANCE_OF_16_BITS = 1e-3, 3e-2
_MAY_MIX = 'GetItem', 'Matmul', 'Einsum', 'Dot', 'Tensordot', 'Take'


def refuse_lost_batches(graph: Any, outputs: list[int]) -> None:
    """Raises ValueError if a tensor mixes the examples of a batch, or an output's first dimension is not the batch.

    Each micro-batch has its own scalars, such as a mean over all examples, and outputs are concatenated along their
    first dimension. Operations without weights that may work along the batch (`keras.ops`, Lambda, layers with an axis
    of 0) are tested on a few random examples. Models with a fixed batch size are not checked, because it cannot be told
    from other sizes.

    Args:
        graph: `keras_model.ModelGraph`.
        outputs: list of the numbers of the values that the model returns.

    Raises:
        ValueError: the message names the layer.
    """
    values = dict(enumerate(keras.tree.flatten(graph.input_structure)))
    if any(spec.shape.rank == 0 or spec.shape[0] is not None for spec in values.values()):
        return
    for unit in graph.units:
        if _mixes_examples(unit, [values[number] for number in unit.inputs]):
            raise ValueError(f'Layer {unit.name!r} mixes the examples of a batch, but would see those of one '
                             'micro-batch only. Set num_micro_batches=1, or compute it in the loss.')
        values.update(zip(unit.outputs, unit.specs))
        lost = [spec for spec in unit.specs if spec.shape.is_fully_defined()]
        if lost and _reads_examples(unit, [values[number] for number in unit.inputs]):
            raise ValueError(
                f'Layer {unit.name!r} makes a tensor of shape {tuple(lost[0].shape)} of all examples of a batch, but '
                'would get those of one micro-batch only. Set num_micro_batches=1, or compute it in the loss.')
    for number in outputs:
        if values[number].shape.rank == 0 or values[number].shape[0] is not None:
            name = next((unit.name for unit in graph.units if number in unit.outputs), graph.model.name)
            raise ValueError(
                f'The output of layer {name!r} has shape {tuple(values[number].shape)}, whose first dimension is not '
                'the batch, so those of micro-batches cannot be put together. Set num_micro_batches=1, or put the '
                'batch first.')


def _reads_examples(unit, specs):
    """Whether outputs without a batch depend on more than the shapes of inputs with one."""
    variables = [variable for layer in unit.layers for variable in layer.variables]

    def run(inputs, values):
        with keras.StatelessScope(state_mapping=list(zip(variables, values)), initialize_variables=False):
            return unit(list(inputs), training=True)

    graph = control_flow.until_traced(
        tf.function(run, autograph=False).get_concrete_function,
        specs, [tf.TensorSpec(variable.shape, variable.dtype) for variable in variables]).graph
    shapes = frozenset(operation.outputs[0].ref() for operation in graph.get_operations()
                       if operation.type in ('Shape', 'Size'))
    lost = [tensor for tensor in graph.outputs if tensor.shape.is_fully_defined()]
    needed = graph_pieces.ancestors(lost, stops=shapes)
    return any(tensor.op in needed for tensor, spec in zip(graph.inputs, specs) if not spec.shape.is_fully_defined())


def _mixes_examples(unit, specs):
    """Whether a unit returns something else for a few random examples together than for two parts of them.

    Units that cannot be tested, draw random numbers, or return another number of rows do not count.
    """
    if not _may_mix(unit.layer, specs):
        return False
    examples = [_examples(spec) for spec in specs]
    try:
        whole, again = (_outputs(unit, examples, slice(None)) for _ in range(2))
        parts = zip(_outputs(unit, examples, slice(_CUT)), _outputs(unit, examples, slice(_CUT, None)))
        joined = [np.concatenate(pair) for pair in parts]
    except Exception:  # a user's function may raise anything for such examples
        return False
    has_16_bits = any(spec.dtype in (tf.bfloat16, tf.float16) for spec in [*specs, *unit.specs])
    tolerance = _TOLERANCE_OF_16_BITS if has_16_bits else _TOLERANCE
    return _are_equal(whole, again, tolerance) and not _are_equal(whole, joined, tolerance)


def _may_mix(layer, specs):
    if isinstance(layer, keras.layers.Lambda) or type(layer).__name__ in _MAY_MIX:
        return True
    rank = max([spec.shape.rank or 0 for spec in specs], default=0) or 1
    axes = tf.nest.flatten([getattr(layer, name, ()) for name in ('axis', 'axes')])
    return not isinstance(layer, keras.layers.BatchNormalization) and any(
        axis is None or isinstance(axis, int) and axis % rank == 0 for axis in axes)


def _examples(spec):
    shape = [size or 3 for size in spec.shape]
    if spec.shape.rank and spec.shape[0] is None:
        shape[0] = _ROWS
    random = np.random.default_rng(0)
    numbers = random.uniform(0.05, 0.95, shape) if spec.dtype.is_floating else random.integers(0, 2, shape)
    return tf.cast(numbers, spec.dtype), bool(spec.shape.rank) and spec.shape[0] is None


def _outputs(unit, examples, rows):
    with keras.StatelessScope():
        outputs = unit([tensor[rows] if is_batch else tensor for tensor, is_batch in examples], training=False)
    return [np.asarray(tf.cast(tensor, tf.complex128)) for tensor in outputs if tensor is not None]


def _are_equal(ones, others, tolerance):
    def is_close(one, other):
        return one.shape == other.shape and np.allclose(one, other, tolerance, 0.1 * tolerance, equal_nan=True)

    return all(len(one) != _ROWS or is_close(one, other) for one, other in zip(ones, others))
