"""Tensors at which the graph of a stage is cut into functions."""

import functools
from collections.abc import Iterable

import tensorflow as tf

from lingpipe.stages import graph_pieces, stage_trace


class StageCut:
    """The tensors that actions of a stage hand on to each other, for the gradients that a step needs.

    Args:
        arguments: what the forward action is given.
        later: the operations of the backward pass.
        inputs: positions of the needed gradients in `Trace.input_gradients`.
        weights: positions of the needed gradients in `Trace.weights`.

    Attributes:
        input_gradients: list of the needed gradients of inputs.
        sums: list of the new sums of the needed gradients of weights.
        selected: list of the tensors that recompute='selective' keeps, once `is_selected`.
    """

    def __init__(self, graph: tf.Graph, trace: stage_trace.Trace, arguments: list[tf.Tensor], later: set[tf.Operation],
                 inputs: Iterable[int], weights: Iterable[int]) -> None:
        self._graph, self._between, self._arguments, self._later = graph, trace.between, arguments, later
        self._given = {tensor.ref() for tensor in arguments}
        self.input_gradients = [trace.input_gradients[position] for position in inputs]
        self.sums = [trace.sums[position] for position in weights]
        self.selected: list[tf.Tensor] = []
        self.is_selected = False

    @functools.cached_property
    def residuals(self) -> list[tf.Tensor]:
        """Tensors that the forward pass computes from its arguments and the backward pass reads."""
        from_arguments = graph_pieces.descendants(self._graph, self._arguments + self.unrepeatable)
        return [tensor for tensor in self._read_by(self._later & self._needed)
                if tensor.op not in self._later and tensor.op in from_arguments and tensor.ref() not in self._given]

    @functools.cached_property
    def bridge(self) -> list[tf.Tensor]:
        """Tensors that are computed for the input gradients and are also read for the weight gradients."""
        first = graph_pieces.ancestors(self.input_gradients) & self._later
        second = (graph_pieces.ancestors(tf.nest.flatten(self.sums)) & self._later) - first
        return [tensor for tensor in self._read_by(second) if tensor.op in first and tensor.op.inputs]

    @functools.cached_property
    def between(self) -> list[tf.Tensor]:
        """Tensors between segments and unrepeatable tensors, without arguments and duplicates."""
        tensors = tf.nest.flatten(self._between) + self.unrepeatable
        return list({tensor.ref(): tensor for tensor in tensors if tensor.ref() not in self._given}.values())

    @functools.cached_property
    def unrepeatable(self) -> list[tf.Tensor]:
        """Tensors of the backward pass that recomputation might change, such as the numbers of tf.random.uniform."""
        operations = self._needed - self._later
        return [tensor for operation in self._graph.get_operations() if operation in operations
                for tensor in operation.outputs if operation.op_def.is_stateful and operation.type != 'ReadVariableOp']

    @functools.cached_property
    def _needed(self) -> set[tf.Operation]:
        return graph_pieces.ancestors(tf.nest.flatten((self.input_gradients, self.sums)))

    def _read_by(self, operations: set[tf.Operation]) -> list[tf.Tensor]:
        ordered = [operation for operation in self._graph.get_operations() if operation in operations]
        return list({tensor.ref(): tensor for operation in ordered for tensor in operation.inputs}.values())
