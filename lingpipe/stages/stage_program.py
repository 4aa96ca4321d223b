"""Functions of one stage for one set of shapes: forward, recompute, and several forms of backward."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from lingpipe.stages import (
    boundary,
    graph_pieces,
    losses,
    outside_state,
    stage_layers,
    stage_trace,
)
from lingpipe.stages.rows import added_losses

Known = dict[Any, tf.Tensor]  # from `tensor.ref()` of a stage's graph to the value of the tensor
_REPEATING = 'recompute', 'backward_from_inputs', 'backward_segment'
# The most parameters of a program that the compiler of libtpu 0.0.51 accepts for TPU v2 and v3; v4 and v5e allow more.
MOST_TPU_PARAMETERS = 3294


class ActionResult(NamedTuple):
    """What the call of an action makes.

    Attributes:
        operation: the call, which the next action on its device waits for; None: nothing had to be computed.
        known: what is known of the stage's graph afterwards, for later actions on the micro-batch.
        forward: the tensors of `Trace.forward`; only of a forward action.
        input_gradients: list of the gradients of the inputs of the `StageFlow`.
        sums: list of the new sums of weight gradients, one per weight of the `StageFlow`; for weights whose gradients
            are `micro_batches.Rows`, those of this micro-batch.
    """

    operation: tf.Operation | None
    known: Known | None = None
    forward: dict[str, Any] | None = None
    input_gradients: list[tf.Tensor] = []
    sums: list[Any] = []


def _once_a_flow(method):
    """Caches the result of a method for each `StageFlow`."""
    @functools.wraps(method)
    def found(self, flow):
        key = (method.__name__, flow)
        if key not in self._found:
            self._found[key] = method(self, flow)
        return self._found[key]

    return found


class StageProgram:
    """Forward and backward of one stage, cut from one traced graph.

    ::

        forward               inputs, variables, targets          -> outputs, statistics, state, metrics, what is kept
        recompute             inputs, variables                   -> residuals, or tensors between the segments
        backward              residuals, gradients, sums          -> input gradients, sums + weight gradients
        backward_from_inputs  inputs, variables, gradients, sums  -> input gradients, sums + weight gradients
        backward_inputs       residuals, gradients                -> input gradients, bridge
        backward_weights      residuals, gradients, bridge, sums  -> sums + weight gradients
        backward_segment      inputs of the segment, gradients of its outputs, sums
                                                                  -> gradients of its inputs, sums + weight gradients

    A backward function computes only what the step needs, a `gradient_flow.StageFlow`. It leaves out the gradients of
    frozen weights, and of inputs that depend on no trained weight. Residuals are tensors that the forward pass computes
    and the backward pass reads. The bridge is what the first half of a split backward pass computes and the second half
    reads. Tensors of the graph that have been computed go from function to function in a dictionary `known` from
    `tensor.ref()` to value. Sums of weight gradients over micro-batches pass through the backward function, so there is
    only one copy of them.

    Args:
        run: `stage_layers.StageLayers`.
        setting: `stage_trace.Setting`.
        specs: pair of a `Boundary` of `tf.TensorSpec` of the inputs of one micro-batch, and the nest of specs of its
            targets, () if there is no loss.
        structure: `Structure` of the inputs.
        loss: function `(targets, outputs) -> {name: (sum, weight)}`, or None.
        training: Python boolean.
        by_layer: whether `backward_segment` is needed.
    """

    def __init__(self, run: stage_layers.StageLayers, setting: stage_trace.Setting,
                 specs: tuple[boundary.Boundary, Any], structure: boundary.Structure, loss: Callable | None,
                 training: bool, by_layer: bool) -> None:
        self._name = f'stage_{run.index}'
        self._run, self._setting = run, setting
        named_specs = {
            'inputs': specs[0], 'targets': specs[1],
            'values': run.variables().map(lambda variable: tf.TensorSpec(variable.shape, variable.dtype)),
            'position': tf.TensorSpec([6], tf.int64)}
        traces: list[stage_trace.Trace] = []
        traced = stage_trace.trace_function(run, setting.replica, structure, loss, training, by_layer, traces)
        # TensorFlow builds gradients of loops differently if XLA is to compile them.
        function = tf.function(traced, autograph=False, jit_compile=setting.jit_compile)
        self._graph = function.get_concrete_function(**named_specs).graph
        self.trace = traces[0]
        self._arguments = _arguments(self._graph, named_specs)
        self._pieces: dict[Any, graph_pieces.GraphPiece] = {}
        self._found: dict[tuple, Any] = {}
        self._selected: dict[Any, list[tf.Tensor]] = {}

    @property
    def graph(self) -> tf.Graph:
        """The graph that everything was traced into."""
        return self._graph

    @functools.cached_property
    def outside_state(self) -> set:
        """References of the resources that layers change and that are no Keras variables."""
        return outside_state.changed(self._graph)

    @property
    def hidden_variables(self) -> list[keras.Variable]:
        """List of the stage's Keras variables that layers read directly, not from `values`: they get no gradient."""
        captured = {id(outer) for outer, _ in self._graph.captures}
        return [variable for part in self._run.variables() for variable in part
                if id(getattr(variable.value, 'handle', None)) in captured]  # unallocated variables have no handle

    def feed(self, arguments: dict[str, Any]) -> Known:
        """Returns what is known before the stage runs.

        Args:
            arguments: dictionary with the values of `inputs` (a `Boundary`), `targets`, `values` (a `Variables`),
                `position` (from `micro_batches.Positions`), and of `statistics`, `borrowed` and `factors`, which are
                those of `Trace.given_statistics`, `Trace.borrowed` and `Trace.given_factors`.
        """
        known = {inner.ref(): outer for name, tensors in self._arguments.items()
                 for inner, outer in zip(tensors, tf.nest.flatten(arguments[name]))}
        known.update({inner.ref(): outer for (_, inner), outer in zip(self.trace.borrowed, arguments['borrowed'])})
        known.update({inner.ref(): outer for inner, outer in zip(self.trace.given_factors, arguments['factors'])})
        return {**known, self.trace.given_statistics.ref(): arguments['statistics']}

    def forward(self, known: Known, kept: str, flow: Any = None) -> ActionResult:
        """Builds the forward action in the current graph.

        Args:
            known: what `feed` returned.
            kept: 'residuals', 'between', 'selected' or 'nothing': what is kept for the backward action.
            flow: `StageFlow` of the backward action; None: there is none.
        """
        results, tensors = self.trace.forward, []
        if flow:
            choices = {'residuals': self._residuals, 'between': self._between, 'selected': self._selected.get,
                       'nothing': lambda flow: []}
            tensors = self._unrepeatable(flow) + choices[kept](flow)
        computed, operation = self._call(
            ('forward', kept, flow), known, tf.nest.flatten(results) + tensors, side_effects=self._side_effects)
        found = tf.nest.map_structure(lambda tensor: computed[tensor.ref()], results)
        return ActionResult(operation, {**known, **_select(computed, tensors)}, forward=found)

    def recompute(self, known: Known, what: str, flow: Any) -> ActionResult:
        """Builds the recomputation of what the forward action did not keep.

        Args:
            known: what `forward` returned as known.
            what: 'residuals', or 'between' for the tensors between segments.
            flow: `StageFlow` of the backward action.
        """
        wanted = self._residuals(flow) if what == 'residuals' else self._between(flow)
        missing = [tensor for tensor in wanted if tensor.ref() not in known]
        computed, operation = self._call(
            ('recompute', what, len(missing), len(known), flow), known, missing, feeds=[ref.deref() for ref in known])
        return ActionResult(operation, {**known, **_select(computed, missing)})

    def backward(self, known: Known, gradients: list[tf.Tensor], sums: list, flow: Any) -> ActionResult:
        """Builds the backward action in the current graph.

        Args:
            known: what is known, including all residuals.
            gradients: list of the gradients of the differentiable outputs, or of the loss, then of the added losses.
            sums: list of the sums of weight gradients over the micro-batches so far, one per weight of `flow`.
            flow: `StageFlow`, the gradients to compute.
        """
        return self._whole_backward('backward', known, gradients, sums, flow, self._residuals(flow))

    def backward_from_inputs(self, known: Known, gradients: list[tf.Tensor], sums: list, flow: Any) -> ActionResult:
        """Builds recomputation and the backward action as one function, so that residuals stay inside it.

        The arguments are those of `backward`, except that residuals need not be known.
        """
        feeds = [*self._unrepeatable(flow), *self._selected.get(flow, [])]
        return self._whole_backward('backward_from_inputs', known, gradients, sums, flow, feeds)

    def _whole_backward(self, name, known, gradients, sums, flow, feeds):
        inputs, new_sums = self._wanted(flow)
        computed, operation = self._call(
            (name, flow), self._give(known, gradients, sums, flow), inputs + tf.nest.flatten(new_sums), feeds)
        return ActionResult(
            operation, input_gradients=_list(computed, inputs), sums=_list(computed, new_sums))

    def backward_inputs(self, known: Known, gradients: list[tf.Tensor], flow: Any) -> ActionResult:
        """Builds the first half of a split backward action, which the previous stage waits for.

        The arguments are those of `backward`, without `sums`.
        """
        inputs, _ = self._wanted(flow)
        known = self._give(known, gradients, [], flow)
        if not inputs:
            return ActionResult(None, known)
        bridge = self._bridge(flow)
        computed, operation = self._call(('backward_inputs', flow), known, inputs + bridge, feeds=self._residuals(flow))
        return ActionResult(operation, {**known, **_select(computed, bridge)}, input_gradients=_list(computed, inputs))

    def backward_weights(self, known: Known, sums: list, flow: Any) -> ActionResult:
        """Builds the second half of a split backward action, from what `backward_inputs` left.

        Args:
            known: what `backward_inputs` returned as known.
            sums: as in `backward`.
            flow: as in `backward`.
        """
        _, new_sums = self._wanted(flow)
        bridge = [tensor for tensor in self._bridge(flow) if tensor.ref() in known]
        computed, operation = self._call(
            ('backward_weights', bool(bridge), flow), {**known, **self._sums(sums, flow)}, tf.nest.flatten(new_sums),
            feeds=self._residuals(flow) + bridge)
        return ActionResult(operation, sums=_list(computed, new_sums))

    def backward_segment(self, index: int, known: Known, gradients: list[tf.Tensor], sums: list,
                         flow: Any) -> ActionResult:
        """Builds the backward pass of one segment, which recomputes the tensors inside it.

        Args:
            index: index of the segment.
            known: what is known, including all tensors between the segments.
            gradients: gradients of the segment's differentiable outputs, then of the added losses.
            sums: list of the sums of weight gradients, one per weight of `flow`; the result replaces those of this
                segment's weights.
            flow: `StageFlow` of the stage.
        """
        trace, added = self.trace, self.trace.given_gradients[len(self.trace.given_gradients) - self.num_added_losses:]
        is_last, num_given = index == len(trace.between), len(gradients) - len(added)
        given = trace.given_gradients[:num_given] if is_last else trace.between_gradients[index]
        wanted = trace.between_gradients[index - 1] if index > self.first_segment(flow) else self._wanted(flow)[0]
        own = {place: trace.segment_sums[index][position] for place, position in enumerate(flow.weights)
               if position in trace.segment_sums[index]}
        known = {**known, **{inner.ref(): outer for inner, outer in zip([*given, *added], gradients)},
                 **self._sums(sums, flow)}
        computed, operation = self._call(
            ('backward_segment', index, flow), known, [*wanted, *tf.nest.flatten(own)],
            feeds=[*self._between(flow), *given, *self._unrepeatable(flow)])
        new = _list(computed, own)
        return ActionResult(operation, input_gradients=_list(computed, wanted),
                            sums=[new.get(place, value) for place, value in enumerate(sums)])

    def keeps_rows(self, position: int) -> bool:
        """Whether the gradient of a weight, one of `Trace.weights`, is `micro_batches.Rows`, which are not summed."""
        return self.trace.given_sums[position] is None

    def first_segment(self, flow: Any) -> int:
        """Returns the index of the first segment whose backward pass is needed."""
        if flow.inputs:
            return 0
        found = (index for index, sums in enumerate(self.trace.segment_sums) if set(sums) & set(flow.weights))
        return min(found, default=0)

    def total_weight(self, targets: Any, position: tf.Tensor) -> tf.Tensor:
        """Builds the weight of a micro-batch's loss, without running the stage.

        Args:
            targets: nest of tensors.
            position: int64 tensor `[6]`, from `micro_batches.Positions`.

        Raises:
            WeightUnknownError: the weight depends on more than these.
        """
        weight = self.trace.forward['metrics']['loss'][1]
        given = [*self._arguments['targets'], *self._arguments['position']]
        feeds = {inner.ref(): outer for inner, outer in zip(given, [*tf.nest.flatten(targets), position])}
        needed = graph_pieces.ancestors([weight], stops=frozenset(feeds))
        others = {tensor.op for tensor in self._all_arguments() if tensor.ref() not in feeds}
        if needed & others:
            raise losses.WeightUnknownError(
                'A layer adds a loss (add_loss or an activity regularizer), and the weight of the main loss, behind '
                f'layer {self._run.layers[-1].name!r}, depends on outputs, as by a Keras mask: the two cannot be '
                'brought together inside of the pipeline. Train a PipelineModel, which computes such losses on the '
                'whole batch, or call the pipeline as a layer.')
        return self._call('total_weight', feeds, [weight])[0][weight.ref()]

    def select(self, flow: Any, choose: Callable) -> None:
        """Chooses what the forward action keeps if it keeps 'selected' tensors; once for each `StageFlow`.

        Args:
            flow: `StageFlow`.
            choose: function from the list of the forward pass's operations, the list of residuals, and the list of
                tensors that exist in any case, to the list of tensors to keep.
        """
        if flow not in self._selected:
            needed = graph_pieces.ancestors(tf.nest.flatten(self.trace.forward) + self._residuals(flow))
            forward = [operation for operation in self._graph.get_operations() if operation in needed]
            given = [*self._all_arguments(), *self._unrepeatable(flow), *graph_pieces.known_shapes(self._graph)]
            self._selected[flow] = choose(forward, self._residuals(flow), given)

    def has_residuals(self, known: Known, flow: Any) -> bool:
        """Whether all residuals are known."""
        return all(tensor.ref() in known for tensor in self._residuals(flow))

    def num_backward_arguments(self, flow: Any) -> int:
        """Returns the largest number of tensors that the backward function may take, including residuals."""
        trace = self.trace
        return len([*self._all_arguments(), *self._residuals(flow), *trace.given_gradients, *self._given_sums])

    @functools.cached_property
    def differentiates_python(self) -> bool:
        """Whether the backward pass differentiates a tf.py_function, of which TensorFlow records only the last call."""
        return graph_pieces.runs(self._graph, self._backward_operations, 'EagerPyFunc')

    @property
    def num_segments(self) -> int:
        """Number of segments of `backward_segment`."""
        return len(self.trace.between) + 1

    @property
    def num_added_losses(self) -> int:
        """1 if layers of the stage add losses, whose sum has its own gradient, else 0."""
        return 1 if self.trace.forward['losses'] else 0

    def added_sums(self, other: 'StageProgram') -> list[bool | None]:
        """Returns for each loss that layers added whether it is a sum over rows, a mean (False), or neither (None).

        Args:
            other: `StageProgram` of the same stage; the two were traced with `forms.NUM_ROWS` rows.
        """
        inputs = list(zip(self._arguments['inputs'], other._arguments['inputs']))
        return added_losses.are_sums(self.trace.added_losses, inputs, self.trace.moments, other._graph)

    def _call(self, key, known, outputs, feeds=(), side_effects=()):
        if key not in self._pieces:
            given = [*self._all_arguments(), *self.trace.given_gradients, *self._given_sums]
            feeds = [tensor for tensor in [*given, *feeds] if tensor.ref() in known]
            name = key if isinstance(key, str) else key[0]
            self._pieces[key] = graph_pieces.GraphPiece(
                self._graph, feeds, outputs, side_effects, f'{self._name}_{name}', self._setting.jit_compile,
                repeats=name in _REPEATING, inline=self._setting.is_inlined)
        return self._pieces[key](known)

    def _wanted(self, flow):
        """Returns the lists of input gradients and of new sums."""
        return ([self.trace.input_gradients[position] for position in flow.inputs],
                [self.trace.sums[position] for position in flow.weights])

    def _give(self, known, gradients, sums, flow):
        return {**known, **{inner.ref(): outer for inner, outer in zip(self.trace.given_gradients, gradients)},
                **self._sums(sums, flow)}

    def _sums(self, sums, flow):
        return {self.trace.given_sums[position].ref(): outer for position, outer in zip(flow.weights, sums)
                if not self.keeps_rows(position)}

    @property
    def _given_sums(self):
        return [placeholder for placeholder in self.trace.given_sums if placeholder is not None]

    def _all_arguments(self):
        return [tensor for tensors in self._arguments.values() for tensor in tensors] + [
            self.trace.given_statistics, *self.trace.given_factors,
            *[placeholder for _, placeholder in self.trace.borrowed]]

    @functools.cached_property
    def _backward_operations(self):
        later = graph_pieces.descendants(self._graph, self.trace.given_gradients + self._given_sums)
        return later | graph_pieces.repeated_pools(later)

    @functools.cached_property
    def _side_effects(self):
        later = self._backward_operations
        return [operation for operation in self._graph.get_operations()
                if operation.op_def.is_stateful and operation not in later]

    @_once_a_flow
    def _backward_ancestors(self, flow):
        inputs, sums = self._wanted(flow)
        return graph_pieces.ancestors(inputs + tf.nest.flatten(sums))

    @_once_a_flow
    def _residuals(self, flow):
        """Tensors that the forward pass computes from its arguments and the backward pass reads."""
        later = self._backward_operations
        return self._frontier(later & self._backward_ancestors(flow), later, flow)

    @_once_a_flow
    def _bridge(self, flow):
        """Tensors that are computed for the input gradients and are also read for the weight gradients."""
        later, (inputs, sums) = self._backward_operations, self._wanted(flow)
        first = graph_pieces.ancestors(inputs) & later
        second = (graph_pieces.ancestors(tf.nest.flatten(sums)) & later) - first
        return [tensor for tensor in self._read_by(second) if tensor.op in first and tensor.op.inputs]

    @_once_a_flow
    def _between(self, flow):
        """Computed tensors between the segments: no arguments, and nothing twice."""
        fed = {tensor.ref() for tensor in self._all_arguments()}
        tensors = tf.nest.flatten(self.trace.between) + self._unrepeatable(flow)
        return list({tensor.ref(): tensor for tensor in tensors if tensor.ref() not in fed}.values())

    @_once_a_flow
    def _unrepeatable(self, flow):
        """Tensors of the backward pass that recomputation might change, such as the numbers of tf.random.uniform."""
        operations = self._backward_ancestors(flow) - self._backward_operations
        return [tensor for operation in self._graph.get_operations() if operation in operations
                for tensor in operation.outputs if operation.op_def.is_stateful and not self._is_constant(operation)]

    def _is_constant(self, operation):
        return operation.type == 'ReadVariableOp' and operation.inputs[0].ref() not in self.outside_state

    def _frontier(self, operations, excluded, flow):
        """Tensors that `operations` read and that depend on the arguments, except results of `excluded` operations."""
        fed = {tensor.ref() for tensor in self._all_arguments()}
        from_arguments = graph_pieces.descendants(self._graph, self._all_arguments() + self._unrepeatable(flow))
        return [tensor for tensor in self._read_by(operations)
                if tensor.op not in excluded and tensor.op in from_arguments and tensor.ref() not in fed]

    def _read_by(self, operations):
        ordered = [operation for operation in self._graph.get_operations() if operation in operations]
        return list({tensor.ref(): tensor for operation in ordered for tensor in operation.inputs}.values())


def _select(computed, tensors):
    return {tensor.ref(): computed[tensor.ref()] for tensor in tensors}


def _list(computed, nest):
    return tf.nest.map_structure(lambda tensor: computed[tensor.ref()], nest)


def _arguments(graph, specs):
    """Names the function's input tensors by the parameter they belong to."""
    tensors, arguments = list(graph.inputs), {}
    for name, nest in specs.items():
        count = len(tf.nest.flatten(nest))
        arguments[name], tensors = tensors[:count], tensors[count:]
    return arguments
