"""Analysis of a graph, to find how the results of a function depend on the rows of a batch."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from lingpipe.stages import graph_pieces, micro_batches, row_rules

_UNKNOWN_SIZE = 3  # of dimensions other than the batch
_READS = ('ReadVariableOp', 'Placeholder', 'PlaceholderWithDefault')


@dataclasses.dataclass(frozen=True)
class Value:
    """How an argument or a result of a function depends on the rows of a batch."""

    dependence: row_rules.Dependence
    # its `tf.TensorSpec` for each of two batches, which have `row_rules.NUM_ROWS` rows
    specs: tuple[tf.TensorSpec, tf.TensorSpec]

    @property
    def is_rows(self) -> bool:
        """Whether entry i of the first dimension is computed from row i of the batch alone."""
        shape = self.specs[0].shape
        return self.dependence == row_rules.ROWS and bool(shape.rank) and shape[0] == row_rules.NUM_ROWS[0]

    @property
    def grows_only_in_rows(self) -> bool:
        """Whether only the first dimension may depend on the number of rows."""
        one, other = (spec.shape for spec in self.specs)
        return one.rank is None or one.rank == other.rank and one[1:].as_list() == other[1:].as_list()


class Results(NamedTuple):
    """The findings of `of_function`."""

    values: list[Value]
    graph: Any  # of one of the two traces


def rows(spec: tf.TensorSpec, places: int = 1) -> Value:
    """Return the `Value` of a tensor that depends on the rows of a batch.

    Args:
        spec: `tf.TensorSpec` `[batch, ...]`. Other dimensions of unknown size get size 3.
        places: how many entries of the first dimension belong to each row.
    """
    sizes = [_UNKNOWN_SIZE if size is None else size for size in spec.shape[1:]]
    one, other = (tf.TensorSpec([count * places, *sizes], spec.dtype) for count in row_rules.NUM_ROWS)
    return Value(row_rules.ROWS, (one, other))


def of_function(function: Callable, *arguments: Any) -> Results:
    """Find how the results of a function depend on the rows of its arguments.

    Args:
        *arguments: one nest of `Value`s for each argument of `function`.
    """
    graphs = [_trace(function, arguments, place) for place in range(2)]  # of two batch sizes
    given = {tensor.ref(): value.dependence for tensor, value in zip(graphs[0].inputs, tf.nest.flatten(arguments))}
    given.update({inner.ref(): row_rules.CONSTANT for _, inner in graphs[0].captures})
    found = of_graph(graphs[0].get_operations(), graphs[1], given)
    pairs = zip(graphs[0].outputs, graphs[1].outputs)
    return Results([Value(found[pair[0].ref()], micro_batches.specs_of_tensors(pair)) for pair in pairs], graphs[0])


def of_graph(operations: Iterable[tf.Operation], other: tf.Graph, given: dict[Any, row_rules.Dependence],
             otherwise: Callable[[row_rules.Node], Any] = lambda node: row_rules.MIXED
             ) -> dict[Any, row_rules.Dependence]:
    """Return the `Dependence` of each tensor, in a dictionary keyed by `tensor.ref()`.

    Args:
        operations: the operations of the trace with `row_rules.NUM_ROWS[0]` rows, in the graph's order.
        other: graph of the trace with `row_rules.NUM_ROWS[1]` rows.
        otherwise: rule for operations outside `row_rules.RULES`. It returns one `Dependence`, or one for each result.
    """
    found, others = dict(given), {operation.name: operation for operation in other.get_operations()}
    for operation in operations:
        if operation.outputs and operation.outputs[0].ref() not in found:
            found.update(_follow(operation, others.get(operation.name), found, otherwise))
    return found


def _trace(function: Callable, arguments: Any, place: int) -> Any:
    specs = tf.nest.map_structure(lambda value: value.specs[place], arguments)
    return tf.function(function, autograph=False).get_concrete_function(*specs).graph


def _follow(operation: tf.Operation, other: tf.Operation | None, found: dict[Any, row_rules.Dependence],
            otherwise: Callable[[row_rules.Node], Any]) -> dict[Any, row_rules.Dependence]:
    """Return the dependences of the results of an operation."""
    mixed = {output.ref(): row_rules.MIXED for output in operation.outputs}
    if other is None or other.type != operation.type or len(other.outputs) != len(operation.outputs):
        return mixed
    # Building a gradient later adds inputs to a loop: empty lists for what its backward pass needs.
    given = [found.get(tensor.ref(), row_rules.CONSTANT) for tensor in operation.inputs]
    node = row_rules.Node(operation, other, given)
    pairs = list(zip(operation.outputs, other.outputs))
    if all(each == row_rules.CONSTANT for each in node.given) or all(map(_is_known, operation.outputs)):
        values = [_of_constants(one, two) for one, two in pairs]
    else:
        values = row_rules.RULES.get(operation.type, otherwise)(node)
    values = values if isinstance(values, list) else [values] * len(pairs)
    return {one.ref(): row_rules.placed(value, one, two) for value, (one, two) in zip(values, pairs)}


def _of_constants(one: tf.Tensor, two: tf.Tensor) -> row_rules.Dependence:
    """Return the dependence of a result that can depend only on the number of rows."""
    first, second = tf.get_static_value(one), tf.get_static_value(two)
    if first is None or second is None:
        return row_rules.MIXED if one.op.op_def.is_stateful and one.op.type not in _READS else row_rules.CONSTANT
    first, second = np.asarray(first), np.asarray(second)
    if np.array_equal(first, second):
        return row_rules.CONSTANT
    if first.ndim == second.ndim == 0:
        return row_rules.of_numbers(first, second)
    is_uniform = all(value.ndim and value.size and (value == first[:1]).all() for value in (first, second))
    return row_rules.ROWS if is_uniform else row_rules.MIXED


_ARE_SUMS = {row_rules.MEAN: False, row_rules.CONSTANT: False, row_rules.TOTAL: True}


def are_sums(losses: list[tf.Tensor], inputs: list[tuple[tf.Tensor, tf.Tensor]], constants: Iterable[tf.Tensor],
             other: tf.Graph) -> list[bool | None]:
    """Find whether losses are sums over the rows.

    Args:
        losses: scalars in the graph of a stage, traced with `row_rules.NUM_ROWS[0]` rows.
        inputs: for each input of the stage, the pair of tensors in this graph and in `other`.
        constants: tensors of the graph that count as constants, such as the moments of batch norms.
        other: graph of the trace with `row_rules.NUM_ROWS[1]` rows.

    Returns:
        For each loss, True for a sum, False for a mean, None if uncertain.
    """
    given = {one.ref(): row_rules.ROWS if row_rules.grown(one, two) else row_rules.CONSTANT for one, two in inputs}
    given.update({tensor.ref(): row_rules.CONSTANT for tensor in constants})
    needed = graph_pieces.ancestors(losses)
    operations = [each for each in losses[0].graph.get_operations() if each in needed] if losses else []
    found = of_graph(operations, other, given, _row_by_row)  # as all layers of a pipeline work
    return [_ARE_SUMS.get(found[loss.ref()]) for loss in losses]


def _row_by_row(node: row_rules.Node) -> list[row_rules.Dependence] | row_rules.Dependence:
    """Infer the dependence of each result from inputs and shapes, for an operation outside `row_rules.RULES`."""
    if not all(each in (row_rules.CONSTANT, row_rules.ROWS._replace(axis=each.axis)) or _is_known(tensor)
               for each, tensor in zip(node.given, node.operation.inputs)):
        return row_rules.MIXED
    results = zip(node.operation.outputs, node.other.outputs)
    # A float that does not grow may be a sum over the rows, so `row_rules.placed` makes it MIXED.
    return [row_rules.CONSTANT if _is_whole_number(one) and not row_rules.grown(one, two) else row_rules.ROWS
            for one, two in results]


def _is_whole_number(tensor: tf.Tensor) -> bool:
    return tensor.dtype.is_integer or tensor.dtype.is_bool


def _is_known(tensor: tf.Tensor) -> bool:
    """Return whether the value of a tensor is known while tracing."""
    return tf.get_static_value(tensor) is not None
