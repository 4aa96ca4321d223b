"""State that Keras does not know: layers may read variables and tables of TensorFlow, but not change them."""

from typing import Any

import tensorflow as tf

from lingpipe.devices import device_kinds, variable_placement

_READS = ('ReadVariableOp', 'VariableShape', 'ResourceGather', 'ResourceGatherNd', 'LookupTableFindV2',
          'LookupTableSizeV2', 'LookupTableExportV2')
_NOT_FOR_XLA = ('LookupTable', 'String', 'StaticRegex', 'Unicode')  # beginnings of operation types
_DRAWS = ('RngReadAndSkip', 'RngSkip')  # any order of random numbers is as good
_READ_ONLY = '_read_only_resource_inputs'  # positions that TensorFlow records for calls, branches and loops


def refuse_changes(graph: tf.Graph, stage: int) -> None:
    """Raise ValueError if a stage's layers change such state: replicas and recomputation would change it more often."""
    captured = {inner.ref(): outer for outer, inner in graph.captures if inner.dtype == tf.resource}
    changed = [captured[ref] for operation in graph.get_operations() for ref in _written(graph, operation)
               if ref in captured]
    if changed:
        raise ValueError(
            f'A layer of partition {stage} changes {_name(graph, changed[0])}, a variable or table of TensorFlow. Make '
            'it by add_weight, which is exact over micro-batches, or leave it out.')


def _written(graph: tf.Graph, operation: tf.Operation) -> set[Any]:
    if operation.type in (*_READS, *_DRAWS):
        return set()
    refs = {position: tensor.ref() for position, tensor in enumerate(operation.inputs) if tensor.dtype == tf.resource}
    if _READ_ONLY not in operation.node_def.attr:
        return set(refs.values())
    # TensorFlow records reads of variables only; tables that a function reads count as not changed.
    handles = {id(variable.handle) for variable in graph.variables}
    variables = {inner.ref() for outer, inner in graph.captures if id(outer) in handles}
    read = operation.get_attr(_READ_ONLY)
    return {ref for position, ref in refs.items() if position not in read} & variables


def refuse_uncompilable(graph: tf.Graph, device: str) -> None:
    """Raise ValueError if XLA cannot compile a graph for a device: tables, texts, or variables of another device."""
    names = [operation.name for operation in graph.get_operations() if operation.type.startswith(_NOT_FOR_XLA)]
    if names:
        raise ValueError(f'{names[0]!r} looks up a table or reads texts, which XLA cannot compile (jit_compile=True). '
                         'Set jit_compile=False, or do it before the pipeline, in the input.')
    elsewhere = [variable for variable in graph.variables if not device_kinds.is_logical_core(device)
                 and not variable_placement.is_same_device(device, variable.device)]
    if elsewhere:
        raise ValueError(f'A layer uses {elsewhere[0].name!r}, a variable of TensorFlow on {elsewhere[0].device}, and '
                         f'its partition is on {device}: XLA (jit_compile=True) cannot reach it there. Make it by '
                         'add_weight, or set jit_compile=False.')


def _name(graph: tf.Graph, outer: tf.Tensor) -> str:
    names = [variable.name for variable in graph.variables if variable.handle is outer]
    return repr(names[0] if names else outer.name if not hasattr(outer, 'numpy') else 'a resource')
