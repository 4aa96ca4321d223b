"""Pieces of one traced graph as separate functions.

A stage is traced once, with forward and backward pass in one graph. Each function of a stage is a piece of this graph.
"""

import contextlib
import functools
import weakref
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from lingpipe.private_api import pywrap_tfe, record, xla
from lingpipe.stages import boundary


def _copy(graph: tf.Graph, operation: tf.Operation, values: dict, copies: dict[tf.Operation, tf.Operation]) -> None:
    """Copy an operation into the current graph, on the current device."""
    # `tf.graph_util.import_graph_def` fails inside a TPU program, where all operations wait for a particular one.
    target = tf.compat.v1.get_default_graph()
    attributes = _attributes_of(operation)
    for name in functions_of(attributes.values()):
        if not target._is_function(name):
            target._add_function_recursive(graph._get_function(name))
    with tf.control_dependencies([copies[other] for other in operation.control_inputs if other in copies]):
        copies[operation] = target.create_op(
            operation.type, [values[tensor.ref()] for tensor in operation.inputs],
            [tensor.dtype for tensor in operation.outputs], name=operation.name, attrs=attributes,
            op_def=operation.op_def)
    for old, new in zip(operation.outputs, copies[operation].outputs):
        values.setdefault(old.ref(), new)


def _attributes_of(operation: tf.Operation) -> dict:
    """Return the attributes that a copy of an operation needs."""
    return {name: value for name, value in operation.node_def.attr.items() if name not in _OF_A_PLACE}


def functions_of(attributes: Iterable) -> set[str]:
    """Return the names of all functions in the attributes of an operation."""
    names = {attribute.func.name for attribute in attributes if attribute.WhichOneof('value') == 'func'}
    return names | {function.name for attribute in attributes for function in attribute.list.func}


# Attribute of a function without side effects, whose operations TensorFlow then does not order.
WITHOUT_ORDER = {'_disable_acd': True}
_NO_GRADIENT = 'LingPipeGraphPiece'
_CALL = 'PartitionedCall'
_OF_A_PLACE = '_class', '_output_shapes'
_ONLY_ONCE = ('A gradient of what a pipeline computed was asked for beyond its own (a gradient penalty, a Hessian, the '
              'gradient of value_and_grad\'s results), but pipelines have first-order gradients only. Compute such a '
              'term with the plain model.')


@contextlib.contextmanager
def recording() -> Iterator[None]:
    """Let gradient tapes record in the `with` block, even if recording was stopped before."""
    is_stopped = pywrap_tfe.TFE_Py_TapeSetIsStopped()  # as inside `tf.recompute_grad`
    if is_stopped:
        pywrap_tfe.TFE_Py_TapeSetRestartOnThread()
    try:
        yield
    finally:
        if is_stopped:
            pywrap_tfe.TFE_Py_TapeSetStopOnThread()


class GraphPiece:
    """A callable that runs the part of `graph` which computes `outputs` from `feeds`.

    Args:
        feeds: tensors of `graph` that the caller can provide. The piece takes only the tensors that it needs.
        side_effects: operations of `graph` that the piece runs even if no output needs them, such as prints.
        jit_compile: whether XLA compiles the piece, if possible.
        inline: whether each call copies the operations of the piece into the caller's graph, on the caller's device.
        repeats: whether the piece recomputes tensors that another piece has computed.
        in_one_thread: whether one thread runs the piece. This is faster if the piece has many small operations.
    """

    def __init__(self, graph: tf.Graph, feeds: Iterable[tf.Tensor], outputs: list[tf.Tensor],
                 side_effects: Iterable[tf.Operation] = (), name: str = 'piece', jit_compile: bool = False,
                 repeats: bool = False, inline: bool = False, in_one_thread: bool = False) -> None:
        self._executor = 'SINGLE_THREADED_EXECUTOR' if in_one_thread else ''
        captures = [internal for _, internal in graph.captures]
        wanted = {tensor.ref() for tensor in outputs}
        shapes = [tensor for tensor in known_shapes(graph) if tensor.ref() not in wanted]  # XLA needs them as constants
        stops = {tensor.ref() for tensor in [*feeds, *captures, *shapes]}
        operations = ancestors([tensor for tensor in outputs if tensor.ref() not in stops], side_effects, stops)
        used = {tensor.ref() for operation in operations for tensor in operation.inputs}
        self.feeds = list({tensor.ref(): tensor for tensor in feeds if tensor.ref() in used}.values())
        self.outputs = list({tensor.ref(): tensor for tensor in outputs if tensor.ref() not in stops}.values())
        # XLA cannot pass the tensor lists of a loop from one program to another.
        jit_compile = jit_compile and not any(tensor.dtype == tf.variant for tensor in [*self.feeds, *self.outputs])
        external = [(outer, inner) for outer, inner in graph.captures if inner.ref() in used]
        self._constants = {tensor.name: (tensor.op.inputs[tensor.value_index].shape.as_list(), tensor.dtype)
                           for tensor in shapes if tensor.ref() in used}
        self._has_barrier = (jit_compile or inline) and repeats  # else XLA keeps earlier results in memory
        if inline:
            self._emit = lambda arguments: self._copy(graph, operations, external, arguments)
        else:
            is_pure = not jit_compile and not any(operation.op_def.is_stateful for operation in operations)
            self._function = self._build(_graph_def(graph, operations), external, name, jit_compile, is_pure)
            self._emit = self._call
            self._dtypes = [tensor.dtype for tensor in self.outputs]
            self._attributes: weakref.WeakKeyDictionary[tf.Graph, dict] = weakref.WeakKeyDictionary()

    def _build(self, graph_def: Any, external: list, name: str, jit_compile: bool, is_pure: bool) -> Any:
        def piece(*arguments: Any) -> Any:
            values = {feed.name: argument for feed, argument in zip(self.feeds, self._behind_barrier(arguments))}
            values.update({inner.name: tf.identity(outer) for outer, inner in external})
            values.update({name: tf.constant(*constant) for name, constant in self._constants.items()})
            return tf.graph_util.import_graph_def(
                graph_def, values, [tensor.name for tensor in self.outputs], name='stage')

        with tf.init_scope():
            body = _compiled(piece) if jit_compile else piece
            body.__name__ = name
            # A graph of inlined functions takes more time and memory to build.
            function = tf.function(body, autograph=False, experimental_attributes={
                '_noinline': True, **(WITHOUT_ORDER if is_pure else {})})
            return function.get_concrete_function(*[tf.TensorSpec(feed.shape, feed.dtype) for feed in self.feeds])

    def _behind_barrier(self, arguments: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
        """Pass the float arguments through an XLA optimization barrier if the piece needs one."""
        # Integers may be shapes, which XLA needs as constants.
        places = [place for place, argument in enumerate(arguments) if boundary.is_differentiable(argument.dtype)]
        if not self._has_barrier or not places:
            return arguments
        behind = dict(zip(places, xla.optimization_barrier(*[arguments[place] for place in places])))
        return [behind.get(place, argument) for place, argument in enumerate(arguments)]

    def __call__(self, values: dict[Any, tf.Tensor]) -> tuple[dict[Any, tf.Tensor], tf.Operation | None]:
        """Call the piece in the current graph.

        Args:
            values: dictionary from the `tensor.ref()` of each feed to the tensor to feed.

        Returns:
            `values` with the outputs added, and the operation that computes the first output (None without outputs).
        """
        if not self.outputs:
            return dict(values), None
        arguments = [values[feed.ref()] for feed in self.feeds]
        results = self._emit(arguments)
        for tensor, result in zip(self.outputs, results):
            result.set_shape(tensor.shape)
        return {**values, **{tensor.ref(): result for tensor, result in zip(self.outputs, results)}}, results[0].op

    def _call(self, arguments: list[tf.Tensor]) -> list[tf.Tensor]:
        graph, inputs = tf.compat.v1.get_default_graph(), arguments + list(self._function.captured_inputs)
        attributes = self._attributes.get(graph)
        if attributes:
            # The public `create_op` inspects its own signature in every call, which takes a fifth of the time.
            results = graph._create_op_internal(_CALL, inputs, self._dtypes, attrs=attributes).outputs
        else:
            with graph.gradient_override_map({_CALL: _NO_GRADIENT}), record.stop_recording():
                # A stateless call. TensorFlow would run stateful calls one after another, even on different devices.
                results = tf.raw_ops.PartitionedCall(
                    args=inputs, Tout=self._dtypes, f=self._function, config_proto=_optimizer_config(),
                    executor_type=self._executor)
            self._attributes[graph] = _attributes_of(results[0].op)
        if record.could_possibly_record():  # tapes ignore the overrides of graphs
            record.record_operation(_NO_GRADIENT, results, arguments, lambda *gradients: _refuse(arguments, gradients))
        return results

    def _copy(self, graph: tf.Graph, operations: set[tf.Operation], external: list,
              arguments: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        arguments = self._behind_barrier(arguments)
        values = {feed.ref(): argument for feed, argument in zip(self.feeds, arguments)}
        values.update({inner.ref(): tf.identity(outer) for outer, inner in external})
        values.update({graph.get_tensor_by_name(name).ref(): tf.constant(shape, dtype)
                       for name, (shape, dtype) in self._constants.items()})
        copies: dict[tf.Operation, tf.Operation] = {}
        for operation in graph.get_operations():
            if operation in operations:
                _copy(graph, operation, values, copies)
        return [values[tensor.ref()] for tensor in self.outputs]


@tf.RegisterGradient(_NO_GRADIENT)
def _refuse_in_graph(operation: tf.Operation, *gradients: Any) -> list:
    # None as `operation`: TensorFlow saves a function, and `gradients` are the inputs.
    return _refuse(operation.inputs if operation else gradients, gradients)


def _refuse(inputs: Any, gradients: Any) -> list:
    """Fail at run time if a gradient is not zero."""
    is_zero = [tf.reduce_all(tf.equal(gradient, 0)) for gradient in gradients  # nested gradient tapes pass zeros
               if gradient is not None and boundary.is_differentiable(gradient.dtype)]
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(is_zero), [_ONLY_ONCE])]):
        return [tf.zeros_like(tensor) if boundary.is_differentiable(tensor.dtype) else None for tensor in inputs]


def _compiled(function: Callable) -> Callable:
    compiled = tf.function(function, autograph=False, jit_compile=True)
    return lambda *arguments: compiled(*arguments)


@functools.cache
def _optimizer_config() -> bytes:
    """Return the graph optimizer settings for calling a piece, as a serialized `ConfigProto`."""
    # A second round finds nothing. Copies of the function for constant arguments or unused results delay the start.
    config = tf.compat.v1.ConfigProto()
    options = config.graph_options.rewrite_options
    options.meta_optimizer_iterations = options.ONE
    options.function_optimization = options.OFF
    return config.SerializeToString()


def ancestors(tensors: Iterable[tf.Tensor], operations: Iterable[tf.Operation] = (),
              stops: Container = frozenset()) -> set[tf.Operation]:
    """Return all operations that `tensors` and `operations` need. The search ends at `stops`, a set of `ref()`s."""
    found, pending = set(), [tensor.op for tensor in tensors] + list(operations)
    while pending:
        operation = pending.pop()
        if operation not in found:
            found.add(operation)
            pending.extend(tensor.op for tensor in operation.inputs if tensor.ref() not in stops)
    return found


def descendants(graph: tf.Graph, tensors: Iterable[tf.Tensor]) -> set[tf.Operation]:
    """Return the operations of `graph` that depend on `tensors`, and not only on their static shapes."""
    found = {tensor.op for tensor in tensors}
    for operation in graph.get_operations():
        if any(tensor.op in found for tensor in operation.inputs) and not _gives_known_shapes(operation):
            found.add(operation)
    return found


def runs(graph: tf.Graph, operations: Iterable[tf.Operation], kind: str) -> bool:
    """Return whether `operations`, or the functions that they call, run an operation of type `kind`."""
    for operation in operations:
        bodies = [graph._get_function(name).graph for name in functions_of(operation.node_def.attr.values())]
        if operation.type == kind or any(runs(body, body.get_operations(), kind) for body in bodies):
            return True
    return False


def repeated_pools(operations: set[tf.Operation]) -> set[tf.Operation]:
    """Return the max pooling operations whose gradients are in `operations`."""
    # The backward pass repeats them, which is much faster on CPUs: the gradient reads a record of the maxima, which
    # oneDNN writes only if pooling and gradient are in the same graph.
    return {operation.inputs[1].op for operation in operations if operation.type in ('MaxPoolGrad', 'MaxPool3DGrad')}


def known_shapes(graph: tf.Graph) -> list[tf.Tensor]:
    """Return the tensors of a graph that hold shapes known while tracing."""
    return [tensor for operation in graph.get_operations() if _gives_known_shapes(operation)
            for tensor in operation.outputs]


def _gives_known_shapes(operation: tf.Operation) -> bool:
    return operation.type in ('Shape', 'ShapeN') and all(tensor.shape.is_fully_defined() for tensor in operation.inputs)


def _graph_def(graph: tf.Graph, operations: Iterable[tf.Operation]) -> Any:
    """Serialise some operations of a graph, with the control edges between them."""
    if graph not in _graph_defs:  # once for all pieces: a traced graph no longer changes
        _graph_defs[graph] = graph.as_graph_def()
    whole = _graph_defs[graph]
    names = {operation.name for operation in operations}
    graph_def = tf.compat.v1.GraphDef(library=whole.library, versions=whole.versions)
    for node in whole.node:
        if node.name in names:
            copy = graph_def.node.add()
            copy.CopyFrom(node)
            copy.attr.pop('_class', None)
            copy.input[:] = [name for name in node.input if not name.startswith('^') or name[1:] in names]
    return graph_def


_graph_defs: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
