"""Refusing models whose tensors lose the batch, which micro-batches would change."""

import keras
import tensorflow as tf

from lingpipe.pipeline import control_flow, graph_pieces


def refuse_lost_batches(graph, outputs):
    """Raises ValueError where a tensor of a Keras model mixes the examples of a batch, or an output has them elsewhere.

    Each micro-batch has the scalars of its own, such as a mean over all examples, and outputs are put together along their
    first dimension. Models with a fixed batch size are not looked at: theirs is a number as any other.

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
        values.update(zip(unit.outputs, unit.specs))
        lost = [spec for spec in unit.specs if spec.shape.is_fully_defined()]
        if lost and _reads_examples(unit, [values[number] for number in unit.inputs]):
            raise ValueError(
                f'Layer {unit.name!r} makes a tensor of shape {tuple(lost[0].shape)} of all examples of a batch, but would get '
                'those of one micro-batch only. Set num_micro_batches=1, or compute it in the loss.')
    for number in outputs:
        if values[number].shape.rank == 0 or values[number].shape[0] is not None:
            name = next((unit.name for unit in graph.units if number in unit.outputs), graph.model.name)
            raise ValueError(
                f'The output of layer {name!r} has shape {tuple(values[number].shape)}, whose first dimension is not the batch, so '
                'those of micro-batches cannot be put together. Set num_micro_batches=1, or put the batch first.')


def _reads_examples(unit, specs):
    """Whether outputs without examples depend on more than the shapes of inputs that have some."""
    variables = [variable for layer in unit.layers for variable in layer.variables]

    def run(inputs, values):
        with keras.StatelessScope(state_mapping=list(zip(variables, values)), initialize_variables=False):
            return unit(list(inputs), training=True)

    graph = control_flow.until_traced(
        tf.function(run, autograph=False).get_concrete_function,
        specs, [tf.TensorSpec(variable.shape, variable.dtype) for variable in variables]).graph
    shapes = frozenset(operation.outputs[0].ref() for operation in graph.get_operations() if operation.type in ('Shape', 'Size'))
    needed = graph_pieces.ancestors([tensor for tensor in graph.outputs if tensor.shape.is_fully_defined()], stops=shapes)
    return any(tensor.op in needed for tensor, spec in zip(graph.inputs, specs) if not spec.shape.is_fully_defined())
