"""State that layers change but Keras does not know: variables of TensorFlow, tables and queues."""

import collections
from collections.abc import Sequence

import tensorflow as tf

from lingpipe.devices import device_kinds, variable_placement

_READS = ('ReadVariableOp', 'VariableShape', 'ResourceGather', 'ResourceGatherNd', 'LookupTableFindV2',
          'LookupTableSizeV2', 'LookupTableExportV2')
_NOT_FOR_XLA = ('LookupTable', 'String', 'StaticRegex', 'Unicode')  # beginnings of operation types
_DRAWS = ('RngReadAndSkip', 'RngSkip')  # any order of random numbers is as good
_READ_ONLY = '_read_only_resource_inputs'  # positions that TensorFlow records for calls, branches and loops


def changed(graph: tf.Graph) -> set:
    """Return the references of those resources among a graph's captured tensors that its operations change."""
    captured = {inner.ref() for _, inner in graph.captures if inner.dtype == tf.resource}
    return {ref for operation in graph.get_operations() for ref in _written(graph, operation) if ref in captured}


def _written(graph: tf.Graph, operation: tf.Operation) -> set:
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


def refuse_shared(graphs: Sequence[tf.Graph], num_replicas: int) -> None:
    """Raise ValueError if several stages or replicas use state that they change: their order would be undefined."""
    users = collections.defaultdict(set)
    for stage, graph in enumerate(graphs):
        for outer, _ in graph.captures:
            users[id(outer)].add(stage)
    for stage, graph in enumerate(graphs):
        refs = changed(graph)
        for outer, inner in graph.captures:
            others = sorted(users[id(outer)] - {stage})
            if inner.ref() in refs and (others or num_replicas > 1):
                where = f'partition {others[0]} uses it too' if others else f'num_replicas={num_replicas} share it'
                raise ValueError(
                    f'A layer of partition {stage} changes {_name(graph, outer)}, a variable or table of TensorFlow, '
                    f'and {where}: its value would depend on who is first. Make it by add_weight, or give one '
                    'partition all layers that use it (partition_by=[...]), in one replica.')


def no_empty_micro_batch(rows: Sequence) -> list[tf.Operation]:
    """Return the check, if needed, that no micro-batch is empty: the row that it computes on would change the state."""
    if all(isinstance(count, int) for count in rows):
        return []
    told = ('The batch has fewer rows than num_micro_batches times num_replicas, and a layer changes a variable or '
            'table of TensorFlow, which it must not do for an empty micro-batch. Make the batch larger '
            '(drop_remainder), or make the state by add_weight.')
    return [tf.debugging.assert_positive(tf.stack(rows), told)]


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
