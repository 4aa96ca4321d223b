"""Forward and backward functions of one stage for one set of shapes."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import keras
import tensorflow as tf

from lingpipe.stages import boundary, graph_pieces, losses, row_dependence, stage_layers, stage_trace

Values = dict[Any, tf.Tensor]  # from `tensor.ref()` of a stage's graph to the value of the tensor
# What a forward action retains for its backward action; all include what is unrepeatable, such as random numbers.
Retained = Literal['residuals', 'between', 'selected', 'unrepeatable']
_REPEATING = 'recompute', 'backward_from_inputs', 'backward_segment'
# The most parameters of a program that the compiler of libtpu 0.0.51 accepts for TPU v2 and v3; v4 and v5e allow more.
MOST_TPU_PARAMETERS = 3294


class Arguments(NamedTuple):
    """The arguments of a stage's forward action."""

    inputs: boundary.Boundary
    targets: Any  # nest that the loss compares the outputs with; () if there is no loss
    values: stage_layers.Variables
    micro_batch_id: tf.Tensor  # int64 `[6]`, from `micro_batches.MicroBatchIds`
    # list, the values of variables that layers of this stage read, but do not have (`Trace.borrowed`); a tied weight is
    # a weight of each stage that uses it, and is not among them
    borrowed: list[tf.Tensor]
    factors: list[tf.Tensor]  # list, the factors of the losses that layers add, `Trace.given_factors`
    statistics: tf.Tensor  # tensor `[3, channels]`, batch norm's statistics over the micro-batches so far


class NeededGradients(NamedTuple):
    """The gradients that a step needs from the backward action of a stage."""

    inputs: tuple[int, ...]  # positions in `Trace.input_gradients`: inputs that depend on earlier trained weights
    weights: tuple[int, ...]  # positions in `Trace.weights`: weights that a loss depends on

    def __bool__(self) -> bool:
        """Return whether any gradient is needed."""
        return bool(self.inputs or self.weights)


NOTHING_NEEDED = NeededGradients((), ())


class ActionResult(NamedTuple):
    """The result of a stage's action. Each kind of action sets only some of the fields."""

    # the call, which the next action on its device waits for; None: nothing had to be computed
    operation: tf.Operation | None
    # what later actions on the micro-batch can read. First the arguments of the forward action and what it retains;
    # then what a recomputation computes; last the gradients that the first half of a split backward action is given,
    # and what it computes from them for the second half.
    in_flight: Values = {}
    results: Any = None  # of a forward action
    input_gradients: list[tf.Tensor] = []  # for the needed inputs
    # the new sums of the gradients of the needed weights; where gradients are `micro_batches.Rows`, only the gradients
    # of this micro-batch
    sums: list[Any] = []


class StageProgram:
    """Forward and backward functions of one stage, cut from one traced graph.

    ::

        forward               arguments                                     -> results, retained residuals
        recompute             arguments                                     -> residuals, or tensors between segments
        backward              arguments, residuals, gradients, sums         -> input gradients, new sums
        backward_from_inputs  arguments, gradients, sums                    -> input gradients, new sums
        backward_inputs       arguments, residuals, gradients               -> input gradients, bridge
        backward_weights      arguments, residuals, bridge, sums            -> new sums
        backward_segment      inputs of the segment, gradients of its outputs, sums
                                                                            -> gradients of its inputs, new sums

    Residuals are tensors that the forward pass computes and the backward pass reads. The bridge has the tensors that
    `backward_inputs` computes and `backward_weights` reads. The sums are sums of weight gradients over the
    micro-batches so far.

    Args:
        inline: see `graph_pieces.GraphPiece`.
        specs: pair (inputs, targets) for one micro-batch. The inputs are a `Boundary` of `tf.TensorSpec`s. The targets
            are a nest of `tf.TensorSpec`s, or () if there is no loss.
        by_layer: whether `backward_segment` is needed. A segment is a part that a stage may recompute separately.
    """

    def __init__(self, run: stage_layers.StageLayers, jit_compile: bool, inline: bool, replica_of: Callable,
                 specs: tuple[boundary.Boundary, Any], structure: boundary.Structure, loss: Callable | None,
                 training: bool | None, by_layer: bool) -> None:
        self._name = f'stage_{run.index}'
        self._run, self._jit_compile, self._inline = run, jit_compile, inline
        variables = run.variables().map(lambda variable: tf.TensorSpec(variable.shape, variable.dtype))
        given = (*specs, variables, tf.TensorSpec([6], tf.int64))
        traces: list[stage_trace.Trace] = []  # gets the trace, because TensorFlow copies returned tensors
        traced = stage_trace.trace_function(run, replica_of, structure, loss, training, by_layer, traces)
        # TensorFlow builds gradients of loops differently if XLA is to compile them.
        function = tf.function(traced, autograph=False, jit_compile=jit_compile)
        self.graph = function.get_concrete_function(*given).graph
        self.trace = trace = traces[0]
        placeholders = tf.nest.pack_sequence_as(given, self.graph.inputs[:len(tf.nest.flatten(given))])
        self._arguments = Arguments(*placeholders, [placeholder for _, placeholder in trace.borrowed],
                                    trace.given_factors, trace.given_statistics)
        self._all_arguments = tf.nest.flatten(self._arguments)
        self._given_sums = [placeholder for placeholder in trace.given_sums if placeholder is not None]
        self._pieces: dict[Any, graph_pieces.GraphPiece] = {}
        self._cuts: dict[NeededGradients, stage_trace.StageCut] = {}

    def forward(self, arguments: Arguments, retained: Retained, needed: NeededGradients) -> ActionResult:
        """Build the forward action in the current graph. With `NOTHING_NEEDED`, the action retains nothing."""
        given, results, tensors = _by_ref(self._all_arguments, tf.nest.flatten(arguments)), self.trace.results, []
        if needed:
            cut = self._cut(needed)
            tensors = cut.unrepeatable + ([] if retained == 'unrepeatable' else getattr(cut, retained))
        values, operation = self._call(
            ('forward', retained, needed), given, tf.nest.flatten(results) + tensors, side_effects=self._side_effects)
        return ActionResult(operation, {**given, **_select(values, tensors)}, _look_up(values, results))

    def recompute(self, in_flight: Values, wanted: Literal['residuals', 'between'],
                  needed: NeededGradients) -> ActionResult:
        """Recompute residuals, or with `wanted='between'` the tensors between segments. Skip tensors in `in_flight`."""
        missing = [tensor for tensor in getattr(self._cut(needed), wanted) if tensor.ref() not in in_flight]
        if not missing:
            return ActionResult(None, in_flight)
        values, operation = self._call(('recompute', wanted, frozenset(in_flight), needed), in_flight, missing,
                                       feeds=[ref.deref() for ref in in_flight])
        return ActionResult(operation, {**in_flight, **_select(values, missing)})

    def backward(self, in_flight: Values, gradients: list[tf.Tensor], sums: list,
                 needed: NeededGradients) -> ActionResult:
        """Build the backward action, which recomputes missing residuals.

        Args:
            gradients: gradients of the differentiable outputs. A stage with the loss takes the gradient of the loss
                instead. The gradient of losses that layers add comes last.
            sums: for each needed weight, the sum of its gradients over the micro-batches so far.
        """
        cut, name = self._cut(needed), 'backward'
        wanted, feeds = (cut.input_gradients, cut.sums), cut.residuals
        if not self.has_residuals(in_flight, needed):
            name, feeds = 'backward_from_inputs', cut.unrepeatable + cut.selected
        given = {**in_flight, **_by_ref(self.trace.given_gradients, gradients), **self._sums(sums, needed)}
        values, operation = self._call((name, needed), given, tf.nest.flatten(wanted), feeds)
        input_gradients, new_sums = _look_up(values, wanted)
        return ActionResult(operation, input_gradients=input_gradients, sums=new_sums)

    def backward_inputs(self, in_flight: Values, gradients: list[tf.Tensor], needed: NeededGradients) -> ActionResult:
        """Build the half of a split backward action that computes input gradients. See `backward`."""
        cut, in_flight = self._cut(needed), {**in_flight, **_by_ref(self.trace.given_gradients, gradients)}
        if not needed.inputs:
            return ActionResult(None, in_flight)
        values, operation = self._call(
            ('backward_inputs', needed), in_flight, cut.input_gradients + cut.bridge, feeds=cut.residuals)
        return ActionResult(operation, {**in_flight, **_select(values, cut.bridge)},
                            input_gradients=_look_up(values, cut.input_gradients))

    def backward_weights(self, in_flight: Values, sums: list, needed: NeededGradients) -> ActionResult:
        """Build the half of a split backward action that computes sums. `in_flight` is from `backward_inputs`."""
        cut = self._cut(needed)
        values, operation = self._call(
            ('backward_weights', needed), {**in_flight, **self._sums(sums, needed)}, tf.nest.flatten(cut.sums),
            feeds=cut.residuals + cut.bridge)
        return ActionResult(operation, sums=_look_up(values, cut.sums))

    def backward_segment(self, index: int, in_flight: Values, gradients: list[tf.Tensor], sums: list,
                         needed: NeededGradients) -> ActionResult:
        """Build the backward pass of one segment.

        Args:
            in_flight: tensors of earlier actions on the micro-batch, including all tensors between the segments.
            gradients: as in `backward`, but for the outputs of the segment.
            sums: as in `backward`. The result has all sums, with changes only for weights of this segment.
        """
        trace, cut, added = self.trace, self._cut(needed), self.of_added_losses(self.trace.given_gradients)
        is_last, num_given = index == len(trace.between), len(gradients) - len(added)
        given = trace.given_gradients[:num_given] if is_last else trace.between_gradients[index]
        is_first = index == self.first_segment(needed)
        inputs = cut.input_gradients if is_first else trace.between_gradients[index - 1]
        own = {place: trace.segment_sums[index][position] for place, position in enumerate(needed.weights)
               if position in trace.segment_sums[index]}
        values = {**in_flight, **_by_ref([*given, *added], gradients), **self._sums(sums, needed)}
        values, operation = self._call(('backward_segment', index, needed), values, [*inputs, *tf.nest.flatten(own)],
                                       feeds=[*cut.between, *given, *cut.unrepeatable])  # recomputes the rest
        new = _look_up(values, own)
        return ActionResult(operation, input_gradients=_look_up(values, inputs),
                            sums=[new.get(place, value) for place, value in enumerate(sums)])

    def keeps_rows(self, position: int) -> bool:
        """Return whether the gradient of `Trace.weights[position]` is `micro_batches.Rows`."""
        return self.trace.given_sums[position] is None

    def first_segment(self, needed: NeededGradients) -> int:
        """Return the index of the first segment whose backward pass is needed."""
        if needed.inputs:
            return 0
        found = (index for index, sums in enumerate(self.trace.segment_sums) if set(sums) & set(needed.weights))
        return min(found, default=0)

    def total_weight(self, targets: Any, micro_batch_id: tf.Tensor) -> tf.Tensor:
        """Compute the weight of a micro-batch's loss without running the stage.

        Raises:
            WeightUnknownError: the weight depends on more than these arguments.
        """
        weight = self.trace.results.metrics['loss'][1]
        given = tf.nest.flatten((self._arguments.targets, self._arguments.micro_batch_id))
        feeds = _by_ref(given, tf.nest.flatten((targets, micro_batch_id)))
        needed = graph_pieces.ancestors([weight], stops=frozenset(feeds))
        others = {tensor.op for tensor in self._all_arguments if tensor.ref() not in feeds}
        if needed & others:
            raise losses.WeightUnknownError(
                'A layer adds a loss (add_loss or an activity regularizer), and the weight of the main loss, behind '
                f'layer {self._run.layers[-1].name!r}, depends on outputs, as by a Keras mask: the two cannot be '
                'brought together inside of the pipeline. Train a PipelineModel, which computes such losses on the '
                'whole batch, or call the pipeline as a layer.')
        return self._call('total_weight', feeds, [weight])[0][weight.ref()]

    def select(self, needed: NeededGradients, choose: Callable) -> None:
        """Choose the tensors that `forward` retains with `retained='selected'`.

        Args:
            choose: function that returns the list of tensors to retain. It takes the list of operations of the forward
                pass, the list of residuals, and the list of tensors that exist in any case.
        """
        cut = self._cut(needed)
        if not cut.is_selected:  # later calls for `needed` change nothing
            found = graph_pieces.ancestors(tf.nest.flatten(self.trace.results) + cut.residuals)
            forward = [operation for operation in self.graph.get_operations() if operation in found]
            given = [*self._all_arguments, *cut.unrepeatable, *graph_pieces.known_shapes(self.graph),
                     *[inner for _, inner in self.graph.captures]]  # such as an adapted mean in float16
            cut.selected, cut.is_selected = choose(forward, cut.residuals, given), True

    def has_residuals(self, in_flight: Values, needed: NeededGradients) -> bool:
        """Return whether `in_flight` has all residuals."""
        return all(tensor.ref() in in_flight for tensor in self._cut(needed).residuals)

    def num_backward_arguments(self, needed: NeededGradients) -> int:
        """Return an upper bound on the number of arguments of the backward function, including residuals."""
        residuals = self._cut(needed).residuals
        return len([*self._all_arguments, *residuals, *self.trace.given_gradients, *self._given_sums])

    @functools.cached_property
    def differentiates_python(self) -> bool:
        """Whether the backward pass differentiates a tf.py_function."""
        return graph_pieces.runs(self.graph, self._backward_operations, 'EagerPyFunc')

    @property
    def adds_losses(self) -> bool:
        """Whether layers add losses."""
        return bool(self.trace.results.added)

    def of_added_losses(self, given_gradients: list[Any]) -> list[Any]:
        """Return `given_gradients[-1:]`, the entry for the added losses, or [] if layers add no losses."""
        return given_gradients[-1:] if self.adds_losses else []

    def are_sums(self, other: 'StageProgram') -> list[bool | None]:
        """Find whether the added losses are sums over rows. See `row_dependence.are_sums`.

        Args:
            other: program of the stage for `row_rules.NUM_ROWS[1]` rows. This program has `row_rules.NUM_ROWS[0]` rows.
        """
        inputs = list(zip(*map(tf.nest.flatten, (self._arguments.inputs, other._arguments.inputs))))
        moments = [moment for call in self.trace.norm_calls for moment in (call.mean, call.variance)]
        return row_dependence.are_sums(self.trace.added_losses, inputs, moments, other.graph)

    def _call(self, key: Any, values: Values, outputs: list[tf.Tensor], feeds: Sequence[tf.Tensor] = (),
              side_effects: Sequence[tf.Operation] = ()) -> tuple[Values, tf.Operation | None]:
        """Call the piece of the graph that computes `outputs`."""
        if key not in self._pieces:  # pieces are cut out of the graph when they are needed
            given = [*self._all_arguments, *self.trace.given_gradients, *self._given_sums]
            feeds = [tensor for tensor in [*given, *feeds] if tensor.ref() in values]
            name = key if isinstance(key, str) else key[0]
            self._pieces[key] = graph_pieces.GraphPiece(
                self.graph, feeds, outputs, side_effects, f'{self._name}_{name}', self._jit_compile,
                repeats=name in _REPEATING, inline=self._inline)
        return self._pieces[key](values)

    def _sums(self, sums: list, needed: NeededGradients) -> Values:
        return {self.trace.given_sums[position].ref(): outer for position, outer in zip(needed.weights, sums)
                if not self.keeps_rows(position)}

    def _cut(self, needed: NeededGradients) -> stage_trace.StageCut:
        if needed not in self._cuts:
            self._cuts[needed] = stage_trace.StageCut(
                self.graph, self.trace, self._all_arguments, self._backward_operations, *needed)
        return self._cuts[needed]

    @functools.cached_property
    def _backward_operations(self) -> set[tf.Operation]:
        later = graph_pieces.descendants(self.graph, self.trace.given_gradients + self._given_sums)
        return later | graph_pieces.repeated_pools(later)

    @functools.cached_property
    def _side_effects(self) -> list[tf.Operation]:
        later = self._backward_operations
        return [operation for operation in self.graph.get_operations()
                if operation.op_def.is_stateful and operation not in later]


def _by_ref(inner: list[tf.Tensor], outer: list[tf.Tensor]) -> Values:
    return {tensor.ref(): value for tensor, value in zip(inner, outer)}


def _select(values: Values, tensors: list[tf.Tensor]) -> Values:
    return {tensor.ref(): values[tensor.ref()] for tensor in tensors}


def _look_up(values: Values, nest: Any) -> Any:
    return keras.tree.map_structure(lambda tensor: values[tensor.ref()], nest)  # a third of tf.nest's time
