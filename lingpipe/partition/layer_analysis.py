"""Shapes, parameters and floating-point operations of layers, found without allocating weights."""

import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from lingpipe import hyperparams
from lingpipe.layers import base_layer
from lingpipe.stages import micro_batches, stage_layers

# Operations that are taken as free: they move, reshape or convert numbers.
_FREE = frozenset([
    'Const', 'Placeholder', 'Identity', 'IdentityN', 'NoOp', 'Reshape', 'ExpandDims', 'Squeeze', 'Shape', 'Pack',
    'Unpack', 'StridedSlice', 'Slice', 'ConcatV2', 'Split', 'SplitV', 'Transpose', 'Cast', 'StopGradient',
    'BroadcastTo', 'Tile', 'Pad', 'PadV2', 'GatherV2', 'ReadVariableOp', 'Fill', 'ZerosLike', 'OnesLike'])


def forward(layer: Any, inputs: Any, values: list[tf.Tensor]) -> Any:
    """Call a built layer with `values` instead of its variables. The variables stay unchanged."""
    with keras.StatelessScope(state_mapping=list(zip(layer.variables, values)), initialize_variables=False):
        return stage_layers.call_layers([layer], inputs, training=True)


def forward_and_backward(layer: Any, inputs: Any, values: list[tf.Tensor],
                         output_gradients: Callable[[list[tf.Tensor]], list[tf.Tensor]]) -> tuple[Any, list[tf.Tensor]]:
    """Run a built layer forward and backward.

    Args:
        output_gradients: function that takes the list of floating-point outputs and returns their gradients.

    Returns:
        The outputs, and a list of gradients: one per floating-point input, then one per trainable weight.
    """
    weights = [value for variable, value in zip(layer.variables, values) if variable.trainable]
    sources = floats(inputs) + weights
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(sources)
        outputs = forward(layer, inputs, values)
        differentiated = floats(outputs)
    gradients = tape.gradient(
        differentiated, sources, output_gradients(differentiated), unconnected_gradients=tf.UnconnectedGradients.ZERO)
    return outputs, [tf.convert_to_tensor(gradient) for gradient in gradients]


def floats(nest: Any) -> list:
    """Return the floating-point tensors or specs of a nest."""
    return [tensor for tensor in tf.nest.flatten(nest) if tensor.dtype.is_floating]


class LayerTrace(NamedTuple):
    """A traced layer."""

    graph: Any  # `FuncGraph`, whose first arguments are the layer's inputs and the others its variables
    inputs: list
    outputs: list
    given: list  # placeholders for the gradients of the outputs; empty without a backward pass
    wanted: list  # the gradients of inputs and weights; without a backward pass the outputs
    output_specs: Any  # nest of `tf.TensorSpec`


def trace(layer: Any, specs: Any, has_backward: bool = True) -> LayerTrace:
    """Trace a layer forward and backward.

    Args:
        specs: nest of `tf.TensorSpec` of the inputs. Every dimension is known.
        has_backward: whether to trace the backward pass.
    """
    given, results = [], {}

    def output_gradients(outputs):
        given.extend(tf.compat.v1.placeholder(tensor.dtype, tensor.shape) for tensor in outputs)
        return given

    def passes(inputs, values):
        if has_backward:
            results['outputs'], results['gradients'] = forward_and_backward(
                layer, inputs, values, output_gradients)
        else:
            results['outputs'] = forward(layer, inputs, values)

    graph = tf.function(passes, autograph=False).get_concrete_function(
        specs, [tf.TensorSpec(variable.shape, variable.dtype) for variable in layer.variables]).graph
    outputs = tf.nest.flatten(results['outputs'])
    return LayerTrace(
        graph, graph.inputs[:len(tf.nest.flatten(specs))], outputs, given, results.get('gradients', outputs),
        micro_batches.specs_of_tensors(results['outputs']))


class Flops(NamedTuple):
    """Numbers of floating-point operations."""

    contractions: int  # two for each multiply-add
    elementwise: int  # one for each output value of other operations

    @property
    def total(self) -> int:
        """The sum of `contractions` and `elementwise`."""
        return self.contractions + self.elementwise


def count_flops(graph: tf.Graph) -> Flops:
    """Count the floating-point operations of a graph with static shapes. The body of a loop counts once."""
    counts = [operation_flops(operation) for operation in graph.get_operations()]
    return Flops(sum(count.contractions for count in counts), sum(count.elementwise for count in counts))


def operation_flops(operation: tf.Operation) -> Flops:
    """Count the floating-point operations of one operation, including functions that it calls."""
    contractions, elementwise, outputs = 0, 0, operation.outputs
    if operation.type in _CONTRACTIONS:
        contractions = 2 * multiply_adds(operation)
    elif operation.type not in _FREE and operation.inputs and outputs and outputs[0].dtype.is_floating:
        elementwise = _size(outputs[0])
    for body in called_graphs(operation, operation.graph):
        inner = count_flops(body)
        contractions, elementwise = contractions + inner.contractions, elementwise + inner.elementwise
    return Flops(contractions, elementwise)


def multiply_adds(operation: tf.Operation) -> int:
    """Return the number of multiply-adds in a matrix product or convolution, else 0."""
    return _CONTRACTIONS[operation.type](operation) if operation.type in _CONTRACTIONS else 0


def _size(tensor):
    return math.prod(dimension or 1 for dimension in tensor.shape.as_list()) if tensor.shape.rank is not None else 0


def _matrix_product(operation):
    transposed = operation.get_attr('transpose_a' if operation.type == 'MatMul' else 'adj_x')
    return _size(operation.outputs[0]) * (operation.inputs[0].shape[-2 if transposed else -1] or 1)


def _convolution(operation):
    """Count the multiply-adds of a convolution or its gradient."""
    # An output value is a sum over the window and the input channels; if depthwise, over the window of one channel.
    output = operation.inputs[2] if 'Backprop' in operation.type else operation.outputs[0]
    kernel = operation.outputs[0] if 'BackpropFilter' in operation.type else operation.inputs[1]
    is_depthwise = operation.type.startswith('Depthwise')
    return _size(output) * math.prod(kernel.shape.as_list()[:2 if is_depthwise else -1])


def _einsum(operation):
    """Count the multiply-adds of an einsum."""
    terms = operation.get_attr('equation').decode().split('->')[0].split(',')
    sizes = {}
    for term, tensor in zip(terms, operation.inputs):
        head, _, tail = term.partition('...')
        # Dimensions that '...' covers get numbers as labels, from the right.
        labels = [*head, *range(tensor.shape.rank - len(head) - len(tail), 0, -1), *tail]
        for label, size in zip(labels, tensor.shape.as_list()):
            sizes[label] = max(size or 1, sizes.get(label, 1))
    return math.prod(sizes.values()) if len(terms) > 1 else 0


_CONTRACTIONS = {
    **dict.fromkeys(('MatMul', 'BatchMatMul', 'BatchMatMulV2', 'BatchMatMulV3'), _matrix_product),
    **dict.fromkeys((
        'Conv2D', 'Conv2DBackpropInput', 'Conv2DBackpropFilter', 'Conv3D', 'Conv3DBackpropInputV2',
        'Conv3DBackpropFilterV2', 'DepthwiseConv2dNative', 'DepthwiseConv2dNativeBackpropInput',
        'DepthwiseConv2dNativeBackpropFilter'), _convolution),
    'Einsum': _einsum,
}


def called_graphs(operation: tf.Operation, graph: tf.Graph) -> list:
    """Return the graphs of the functions that an operation calls, such as the body of a loop."""
    attributes = sorted(operation.node_def.attr.items())  # their own order differs from process to process
    names = [value.func.name for _, value in attributes if value.HasField('func')]
    functions = (graph._get_function(name) for name in names)  # pylint: disable=protected-access
    return [function.graph for function in functions if getattr(function, 'graph', None) is not None]


class LayerAnalysis(NamedTuple):
    """Shapes and costs of one layer of a stack."""

    name: str
    kind: str
    num_parameters: int
    flops: Flops  # `Flops` of the forward pass of one example
    outputs: Any  # nest of `tf.TensorSpec` with a batch of one example
    # whether it has a trained weight, or its inputs depend on one (Keras models); True if Params describe the layer
    has_backward: bool = True
    num_frozen: int = 0  # number of the values of weights that would be trained if they were not frozen


def analyse_layers(layer_params: list[hyperparams.InstantiableParams], input_specs: Any,
                   layers: list[keras.layers.Layer] | None = None) -> list[LayerAnalysis]:
    """Analyse each layer of a stack for one example.

    Args:
        layers: see `look_at_each`.
    """
    analyses = look_at_each(layer_params, micro_batches.specs_of(input_specs, 1), _analyse, layers)
    return [analysis._replace(name=params.name) for analysis, params in zip(analyses, layer_params)]


def look_at_each(layer_params: list[hyperparams.InstantiableParams], input_specs: Any,
                 look: Callable[[Any, Any], tuple[Any, Any]],
                 layers: list[keras.layers.Layer] | None = None) -> list:
    """Return the result of `look` for each layer of a stack. Equal layers with equal inputs share one call.

    Args:
        look: function `(layer, input specs) -> (result, output specs)`. The weights of `layer` are not allocated.
        layers: the layers that the params describe. Their weights are created here without values. None: new layers.

    Raises:
        ValueError: a layer cannot take its input.
    """
    known, found, specs = {}, [], input_specs
    for index, params in enumerate(layer_params):
        key = identity(params), str(specs)
        try:
            if layers is not None:
                with base_layer.deferred_variables():
                    build_layer(layers[index], specs)
            if key not in known:
                with base_layer.unallocated_variables():
                    layer = layers[index] if layers else params.Instantiate()
                    build_layer(layer, specs)
                    known[key] = look(layer, specs)
        except ValueError as error:
            shapes = tf.nest.map_structure(lambda spec: (None, *spec.shape[1:]), specs)
            raise ValueError(f'{error} (Layer {params.name!r}, whose input is {shapes}.)') from error
        one, specs = known[key]
        found.append(one)
    return found


def identity(params: hyperparams.InstantiableParams) -> str:
    """Return the params of a layer as text, without the name. Equal layers have equal texts."""
    return params.Copy().Set(name=None).ToText()


def named_layer_params(layer_params: list[hyperparams.InstantiableParams],
                       dtype_policy: str | None = None) -> list[hyperparams.InstantiableParams]:
    """Return copies of layer params with missing names and dtype policies filled in.

    Raises:
        ValueError: an entry is invalid, or two layers have the same name.
    """
    named = []
    for index, params in enumerate(layer_params):  # indices in the whole stack, so names do not depend on cuts
        if isinstance(params, keras.layers.Layer):
            raise ValueError(f'layers[{index}] is a layer, {params.name!r}, where Params have the params of one. Write '
                             f'KerasParams(keras.layers.{type(params).__name__}, ...); '
                             'layers themselves go into GPipeLayer(layers=[...]).')
        if not isinstance(params, hyperparams.InstantiableParams):
            raise ValueError(f'layers[{index}]={params!r} is not the Params of a layer. Write KerasParams('
                             'keras.layers.Dense, units=10), for instance, or leave it out.')
        snake_case = re.sub(r'(?<=[a-z0-9])(?=[A-Z])', '_', params.cls.__name__).lower()
        if 'name' not in params:
            raise ValueError(
                f'layers[{index}], a {params.cls.__name__}, takes no argument name, which checkpoints need. Give its '
                'constructor **kwargs, and pass them on in super().__init__(**kwargs).')
        named.append(base_layer.with_policy(params, dtype_policy).Set(name=params.name or f'{snake_case}_{index}'))
    names = [params.name for params in named]
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise ValueError(
            f'layers has more than one layer named {doubled}: checkpoints need a name for each. Rename one.')
    return named


def build_layer(layer: keras.layers.Layer, input_specs: Any) -> None:
    """Create a layer's weights for any batch size. `input_specs` is a nest of `tf.TensorSpec` `[batch, ...]`."""
    shapes = tf.nest.map_structure(lambda spec: (None, *spec.shape[1:]), input_specs)
    builds_itself = type(layer).build is not keras.layers.Layer.build
    if builds_itself and not layer.built:
        layer.build(shapes)
    if not builds_itself or not all(sublayer.built for sublayer in layer._flatten_layers(include_self=False)):
        symbols = tf.nest.map_structure(
            lambda spec: keras.KerasTensor((None, *spec.shape[1:]), spec.dtype.name), input_specs)
        layer(symbols)


def _analyse(layer, specs):
    """Return the `LayerAnalysis` of a layer, and the specs of its outputs."""
    traced = trace(layer, specs, has_backward=False)
    borrowed = {id(variable) for variable in getattr(layer, 'borrowed_variables', [])}  # these count at another layer
    own = [variable for variable in layer.weights if id(variable) not in borrowed]
    frozen = base_layer.frozen_weights([layer])
    analysis = LayerAnalysis(
        name=layer.name, kind=type(layer).__name__,
        num_parameters=sum(math.prod(variable.shape) for variable in own if variable.trainable),
        flops=count_flops(traced.graph), outputs=traced.output_specs,
        num_frozen=sum(math.prod(weight.shape) for weight in frozen if id(weight) not in borrowed))
    return analysis, traced.output_specs
