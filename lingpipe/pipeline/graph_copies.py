"""Copying operations of a traced graph into the graph that is being laid out, as if they were written there."""

import tensorflow as tf


def copy_operations(graph, operations, values):
    """Copies operations; the copies carry the device, the control edges and the control flow of the place.

    `tf.graph_util.import_graph_def` fails inside a TPU program, where every operation waits for one of the program's own.

    Args:
        graph: the `FuncGraph` to copy from.
        operations: set of its operations.
        values: dictionary from `tensor.ref()` to the tensor that takes the place of one of its tensors; it grows by the
            results of all copies.
    """
    copies = {}
    for operation in graph.get_operations():
        if operation in operations:
            copies[operation] = _copy(graph, operation, values, [
                copies[other] for other in operation.control_inputs if other in copies])
            for old, new in zip(operation.outputs, copies[operation].outputs):
                values.setdefault(old.ref(), new)


def _copy(graph, operation, values, control_inputs):
    target = tf.compat.v1.get_default_graph()
    attributes = {name: value for name, value in operation.node_def.attr.items() if name not in ('_class', '_output_shapes')}
    _bring_functions(graph, target, attributes.values())
    with tf.control_dependencies(control_inputs):
        return target.create_op(
            operation.type, [values[tensor.ref()] for tensor in operation.inputs],
            [tensor.dtype for tensor in operation.outputs], name=operation.name, attrs=attributes, op_def=operation.op_def)


def _bring_functions(source, target, attributes):
    names = {attribute.func.name for attribute in attributes if attribute.WhichOneof('value') == 'func'}
    names |= {function.name for attribute in attributes for function in attribute.list.func}
    for name in names:
        if not target._is_function(name):
            target._add_function_recursive(source._get_function(name))
