"""Whether the losses that layers add are sums over the rows of a batch, means, or neither for certain."""

from collections.abc import Iterable

import tensorflow as tf

from lingpipe.stages import graph_pieces
from lingpipe.stages.rows import dependence
from lingpipe.stages.rows.forms import CONSTANT, MEAN, MIXED, ROWS, TOTAL, Dependence, Node

_ARE_SUMS = {MEAN: False, CONSTANT: False, TOTAL: True}


def are_sums(losses: list[tf.Tensor], inputs: list[tuple[tf.Tensor, tf.Tensor]], constants: Iterable[tf.Tensor],
             other: tf.Graph) -> list[bool | None]:
    """Returns, for each loss, whether it is a sum over the rows, a mean (False), or neither for certain (None).

    Operations of layers that have no rule count as row by row, as all layers do in a pipeline.

    Args:
        losses: scalars of the graph of a stage that was traced with `forms.NUM_ROWS[0]` rows.
        inputs: pairs of the stage's inputs, there and in the other trace.
        constants: tensors of the graph that are taken for constants, such as the moments of batch norms.
        other: graph of the trace with `forms.NUM_ROWS[1]` rows.
    """
    given = {one.ref(): ROWS if _grown(one, two) else CONSTANT for one, two in inputs}
    given.update({tensor.ref(): CONSTANT for tensor in constants})
    needed = graph_pieces.ancestors(losses)
    operations = [each for each in losses[0].graph.get_operations() if each in needed] if losses else []
    found = dependence.of_graph(operations, other, given, _row_by_row)
    return [_ARE_SUMS.get(found[loss.ref()]) for loss in losses]


def _row_by_row(node: Node) -> list[Dependence] | Dependence:
    """Results that have a row for each row of the inputs, if these are rows and constants."""
    if not all(each in (CONSTANT, ROWS._replace(axis=each.axis)) or _is_known(tensor)
               for each, tensor in zip(node.given, node.operation.inputs)):
        return MIXED
    return [_of_result(one, two) for one, two in zip(node.operation.outputs, node.other.outputs)]


def _is_known(tensor: tf.Tensor) -> bool:
    """Whether a tensor is constant in each trace, as the shape of another one is."""
    return tf.get_static_value(tensor) is not None


def _of_result(one: tf.Tensor, two: tf.Tensor) -> Dependence:
    """Returns what the shapes show; a number could be a sum over the rows, or anything else."""
    if one.dtype == tf.variant:
        return ROWS
    grown = _grown(one, two)
    if not grown and (one.dtype.is_integer or one.dtype.is_bool):
        return CONSTANT
    return ROWS._replace(axis=grown[0]) if grown and len(grown) == 1 else MIXED


def _grown(one: tf.Tensor, two: tf.Tensor) -> list[int] | None:
    """Returns the dimensions that differ between the two traces; None if they are not known."""
    if one.shape.rank is None or one.shape.rank != two.shape.rank:
        return None
    return [axis for axis, (first, second) in enumerate(zip(one.shape, two.shape)) if first != second]
