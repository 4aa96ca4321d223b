"""State that Keras does not know: layers may read variables and tables of TensorFlow, but not change them."""

from typing import Any

import tensorflow as tf

from lingpipe.stages import graph_pieces

# Beginnings of the types of operations that change nothing, or, as curves and random numbers, in any order.
_HARMLESS = ('ReadVariableOp', 'VariableShape', 'VarIsInitialized', 'ResourceGather', 'LookupTableFind',
             'LookupTableSize', 'LookupTableExport', 'QueueSize', 'Write', 'FlushSummary', 'Rng', 'StatefulRandom',
             'StatefulUniform', 'StatefulStandardNormal', 'StatefulTruncatedNormal')


def refuse_changes(graph: tf.Graph, stage: int) -> None:
    """Raise ValueError if a stage's layers or loss change state outside Keras: recomputation would change it again.

    Operations are followed into the functions, branches and loops that they call.
    """
    captured = {inner.ref(): outer for outer, inner in graph.captures if inner.dtype == tf.resource}
    for operation in graph.get_operations() if captured else ():
        for place, tensor in enumerate(operation.inputs):
            if tensor.ref() in captured and _changes(graph, operation.node_def, place, len(operation.inputs)):
                raise ValueError(
                    f'A layer or loss of partition {stage} changes {_name(graph, captured[tensor.ref()])} by '
                    f'{operation.type}. Make it by add_weight, which is exact over micro-batches, or leave it out.')


def _changes(graph: tf.Graph, node: Any, place: int, num_inputs: int) -> bool:
    """Return whether an operation changes the resource that is its input at a place."""
    if node.op.startswith(_HARMLESS):
        return False
    bodies = [graph._get_function(name).cached_definition for name in graph_pieces.functions_of(node.attr.values())]
    return not bodies or any(_body_changes(graph, body, place, num_inputs) for body in bodies)


def _body_changes(graph: tf.Graph, body: Any, place: int, num_inputs: int) -> bool:
    arguments = body.signature.input_arg
    argument = arguments[place - num_inputs].name  # a branch lacks the first input, which chooses it
    for node in body.node_def:
        data = [name for name in node.input if not name.startswith('^')]
        if any(_changes(graph, node, place, len(data)) for place, name in enumerate(data) if name == argument):
            return True
    return False


def _name(graph: tf.Graph, outer: tf.Tensor) -> str:
    names = [variable.name for variable in graph.variables if variable.handle is outer]
    return f'the tf.Variable {names[0]!r}' if names else 'a table, an iterator or other state of TensorFlow'
