"""The trace of a stage, with forward and backward pass in one graph."""

import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from lingpipe.devices import collectives
from lingpipe.stages import batch_statistics, boundary, graph_pieces, losses, micro_batches, stage_layers


class Results(NamedTuple):
    """The results of a stage's forward pass on a micro-batch."""

    outputs: boundary.Boundary
    statistics: tf.Tensor  # tensor `[3, channels]`, batch norm's statistics over the micro-batches so far
    assigned: list[tf.Tensor]  # list of the new values of `Trace.assigned`
    metrics: dict  # dictionary from name to (sum, weight), of the loss; empty if there is none
    # two scalars: the sum of the losses that layers added, each times its factor, and the number of rows; empty if
    # layers added none
    added: list[tf.Tensor]


class Trace(NamedTuple):
    """The tensors of a traced stage.

    ::

        inputs ─> segment 0 ─> between[0] ─> segment 1 ─> outputs ─> loss          forward
           │                      │                          │
        input gradients  <─ gradients between[0]  <─  given gradients              backward, and sums + weight gradients
    """

    output_structure: boundary.Structure
    results: Results
    added_losses: list  # list of scalars
    given_factors: list  # list with the placeholder for the factors of `added_losses`; empty if there are none
    norm_calls: list  # list of the `stage_scope.NormCall`s, whose moments `statistics` combines
    statistics: batch_statistics.BatchStatistics
    given_statistics: tf.Tensor  # placeholder for the statistics of the micro-batches so far
    borrowed: list  # list of pairs (Keras variable, placeholder) of variables of other stages that layers read
    assigned: list  # list of Keras variables that layers assign
    between: list  # list of `Boundary`s, the tensors between each segment and the next
    # list of placeholders for the gradients of the differentiable outputs, or of the loss, and one for the added losses
    # if there are any
    given_gradients: list
    weights: list  # the Keras variables that have a gradient
    # list of placeholders, one per weight, for the sums of weight gradients over the micro-batches so far; None for a
    # weight whose gradients are `micro_batches.Rows`, which are not summed
    given_sums: list
    input_gradients: list  # list of the gradients of the differentiable inputs; None for an input without one
    between_gradients: list  # for each entry of `between`, the gradients of its differentiable values
    # list with one entry per weight: its given sum plus its gradient for this micro-batch, or only the gradient if it
    # is `micro_batches.Rows`
    sums: list
    # for each segment, the dictionary from position in `weights` to the given sum plus the gradient of this segment
    # only; empty unless the backward pass is cut at every segment
    segment_sums: list


def trace_function(run: stage_layers.StageLayers, replica_of: Callable, structure: boundary.Structure,
                   loss: Callable | None, training: bool | None, by_layer: bool, traces: list[Trace]) -> Callable:
    """Return the function to trace, which appends its `Trace` to `traces`.

    Args:
        replica_of: function from the `MicroBatchId` fields `replica` and `number_in_replica` to a `Replica` or None.
        by_layer: whether gradients between the segments are needed.
    """

    def function(inputs: Any, targets: Any, values: Any, micro_batch_id: tf.Tensor) -> None:
        own = micro_batches.MicroBatchId.of(micro_batch_id)
        rows = _Rows(own.num_rows, inputs)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(inputs.differentiable)
            with collectives.working_for(replica_of(own.replica, own.number_in_replica)):
                nests, scope = run.call(boundary.pack(inputs, structure), values, own.step,
                                        run.seeds(own.seed_and_step, own.number), training, by_layer, tape.watch)
            added = losses.in_one_precision([tf.reduce_sum(loss) for loss in scope.added_losses])
            with scope:  # a loss may read weights too
                metrics = {} if loss is None else tf.nest.map_structure(rows.unless_empty, loss(targets, nests[-1]))
            given_factors = [_placeholder(tf.TensorSpec([len(added)], added[0].dtype))] if added else []
            sums_of_added = rows.sums_of_added(added, *given_factors)
            outputs = boundary.unpack(nests[-1])
            differentiated = (outputs.differentiable if loss is None else [metrics['loss'][0]]) + sums_of_added[:1]
        between = [boundary.unpack(nest) for nest in nests[1:-1]] if by_layer else []
        statistics = batch_statistics.BatchStatistics([norm_call.norm for norm_call in scope.norm_calls])
        given_statistics = _placeholder(statistics.spec)
        results = Results(
            outputs,
            statistics.merge(given_statistics, rows.unless_empty(statistics.of_micro_batch(scope.norm_calls))),
            [rows.unless_empty(value, old) for _, value, old in scope.assigned], metrics, sums_of_added)
        traces.append(Trace(
            boundary.structure_of(nests[-1]), results, added, given_factors, scope.norm_calls, statistics,
            given_statistics, list(scope.borrowed.values()), [variable for variable, *_ in scope.assigned], between,
            **_backward(tape, differentiated, inputs.differentiable, scope.versions, between, rows,
                        len(run.segments) if by_layer else 0, run.keeps_rows)))

    return function


class _Rows:
    """The number of rows of a micro-batch, which may be 0."""

    def __init__(self, count: tf.Tensor, inputs: Any) -> None:
        self._count = count
        known = inputs.values and inputs.values[0].shape.rank and inputs.values[0].shape[0]
        self._is_empty = None if known else tf.equal(count, 0)

    def unless_empty(self, value: Any, otherwise: Any = 0) -> Any:
        """Return `value`, or `otherwise` if the micro-batch has no rows."""
        return value if self._is_empty is None else tf.where(self._is_empty, tf.cast(otherwise, value.dtype), value)

    def gradient(self, gradient: Any, is_dense: bool) -> Any:
        """Return a gradient as a tensor if `is_dense`, else as `micro_batches.Rows`."""
        if is_dense:
            return self.unless_empty(tf.convert_to_tensor(gradient))
        return micro_batches.Rows(self.unless_empty(gradient.values), gradient.indices)

    def sums_of_added(self, added: list, factors: Any = None) -> list[tf.Tensor]:
        """Return [sum of the losses times their factors, number of rows], or [] if layers added no losses."""
        if not added:
            return []
        return [tf.reduce_sum(tf.math.multiply_no_nan(tf.stack(added), factors)), tf.cast(self._count, factors.dtype)]


def _backward(tape: tf.GradientTape, differentiated: list, inputs: Any, versions: list, between: list, rows: Any,
              num_segments: int, keeps_rows: bool) -> dict[str, list]:
    given_gradients = [_placeholder(tensor) for tensor in differentiated]
    groups = [inputs, [version.value for version in versions], *[point.differentiable for point in between]]
    input_gradients, version_gradients, *between_gradients = tape.gradient(differentiated, groups, given_gradients)
    found = [version._replace(value=gradient) for version, gradient in zip(versions, version_gradients)
             if gradient is not None]
    dense = {id(version.variable) for version in found
             if not (keeps_rows and isinstance(version.value, tf.IndexedSlices))}
    found = [version._replace(value=rows.gradient(version.value, id(version.variable) in dense)) for version in found]
    weights = list({id(version.variable): version.variable for version in found}.values())
    given_sums = [_placeholder(tf.TensorSpec(weight.shape, weight.dtype)) if id(weight) in dense else None
                  for weight in weights]
    return {
        'given_gradients': given_gradients, 'weights': weights, 'given_sums': given_sums,
        'input_gradients': list(map(_dense, input_gradients)),
        'between_gradients': [
            [tf.zeros_like(value) if gradient is None else _dense(gradient)
             for value, gradient in zip(point.differentiable, gradients)]
            for point, gradients in zip(between, between_gradients)],
        'sums': list(_sums(weights, given_sums, found).values()),
        'segment_sums': [_sums(weights, given_sums, [version for version in found if version.segment == segment])
                         for segment in range(num_segments)]}


def _sums(weights: list[keras.Variable], given_sums: list, versions: list) -> dict[int, Any]:
    """Return a dictionary {position in `weights`: new gradient sum} for the weights that have gradients."""
    sums: dict[int, Any] = {}
    for position, (weight, given) in enumerate(zip(weights, given_sums)):
        parts = [version.value for version in versions if version.variable is weight]
        if parts and given is None:
            sums[position] = micro_batches.join_rows(parts)
        elif parts:
            sums[position] = tf.add_n([given, *parts]) if len(parts) > 1 else given + parts[0]
            sums[position].set_shape(weight.shape)  # TensorFlow may not know a gradient's shape
    return sums


def _placeholder(tensor: tf.Tensor) -> tf.Tensor:
    return tf.compat.v1.placeholder(tensor.dtype, tensor.shape)


def _dense(gradient: Any) -> tf.Tensor | None:
    return None if gradient is None else tf.convert_to_tensor(gradient)


class StageCut:
    """The tensors that a stage's actions pass to each other, for one set of needed gradients.

    Args:
        inputs: positions of the needed gradients in `Trace.input_gradients`.
        weights: positions of the needed gradients in `Trace.weights`.
    """

    def __init__(self, graph: tf.Graph, trace: Trace, arguments: list[tf.Tensor], later: set[tf.Operation],
                 inputs: Iterable[int], weights: Iterable[int]) -> None:
        self._graph, self._between, self._arguments, self._later = graph, trace.between, arguments, later
        self._given = {tensor.ref() for tensor in arguments}
        self.input_gradients = [trace.input_gradients[position] for position in inputs]
        self.sums = [trace.sums[position] for position in weights]
        self.selected: list[tf.Tensor] = []  # what recompute='selective' keeps, once `is_selected`
        self.is_selected = False

    @functools.cached_property
    def residuals(self) -> list[tf.Tensor]:
        """The tensors that the forward pass computes and that the backward pass reads."""
        from_arguments = graph_pieces.descendants(self._graph, self._arguments + self.unrepeatable)
        return [tensor for tensor in self._read_by(self._later & self._needed)
                if tensor.op not in self._later and tensor.op in from_arguments and tensor.ref() not in self._given]

    @functools.cached_property
    def bridge(self) -> list[tf.Tensor]:
        """The tensors that are computed for the input gradients and that the weight gradients need too."""
        first = graph_pieces.ancestors(self.input_gradients) & self._later
        second = (graph_pieces.ancestors(tf.nest.flatten(self.sums)) & self._later) - first
        return [tensor for tensor in self._read_by(second) if tensor.op in first and tensor.op.inputs]

    @functools.cached_property
    def between(self) -> list[tf.Tensor]:
        """The tensors between segments, and the unrepeatable tensors."""
        tensors = tf.nest.flatten(self._between) + self.unrepeatable
        return list({tensor.ref(): tensor for tensor in tensors if tensor.ref() not in self._given}.values())

    @functools.cached_property
    def unrepeatable(self) -> list[tf.Tensor]:
        """The needed tensors that a recomputation might change, such as random numbers."""
        operations = self._needed - self._later
        return [tensor for operation in self._graph.get_operations() if operation in operations
                for tensor in operation.outputs if operation.op_def.is_stateful and operation.type != 'ReadVariableOp']

    @functools.cached_property
    def _needed(self) -> set[tf.Operation]:
        return graph_pieces.ancestors(tf.nest.flatten((self.input_gradients, self.sums)))

    def _read_by(self, operations: set[tf.Operation]) -> list[tf.Tensor]:
        ordered = [operation for operation in self._graph.get_operations() if operation in operations]
        return list({tensor.ref(): tensor for operation in ordered for tensor in operation.inputs}.values())
