"""A number for what a graph computes, which is the same in every process that has built it from the same code."""

import hashlib

import tensorflow as tf

from lingpipe.partition import layer_analysis

_DIFFERENT = ('config', 'config_proto', 'container', 'shared_name', 'token')  # between processes


def digest(graph: tf.Graph) -> str:
    """Returns a digest of the operations of a graph, of their constants, and of the functions that it calls.

    Names and devices do not count: names have numbers that depend on what was built before.

    Args:
        graph: the graph.
    """
    found = hashlib.sha256()
    positions: dict[str, int] = {}
    for operation in graph.get_operations():
        positions[operation.name] = len(positions)
        inputs = [(positions.get(tensor.op.name), tensor.value_index) for tensor in operation.inputs]
        inner = [digest(called) for called in layer_analysis.called_graphs(operation, graph)]
        found.update(repr((operation.type, inputs, inner)).encode())
        for name, value in sorted(operation.node_def.attr.items()):
            if name not in _DIFFERENT and name[0] != '_' and not value.HasField('func') and not value.list.func:
                found.update(name.encode() + value.SerializeToString(deterministic=True))
    return found.hexdigest()
