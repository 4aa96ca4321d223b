"""Analysis of the layers of a stack without allocating them: shapes, parameters, floating-point operations."""

import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from lingpipe import hyperparams
from lingpipe.layers import base_layer
from lingpipe.stages import control_flow, graph_pieces, stage_layers

# Operations that count as free: they move, reshape or convert numbers.
_FREE = frozenset([
    'Const', 'Placeholder', 'Identity', 'IdentityN', 'NoOp', 'Reshape', 'ExpandDims', 'Squeeze', 'Shape', 'Pack',
    'Unpack', 'StridedSlice', 'Slice', 'ConcatV2', 'Split', 'SplitV', 'Transpose', 'Cast', 'StopGradient',
    'BroadcastTo', 'Tile', 'Pad', 'PadV2', 'GatherV2', 'ReadVariableOp', 'Fill', 'ZerosLike', 'OnesLike'])


def forward(layer: Any, inputs: Any, values: list[tf.Tensor]) -> Any:
    """Calls a built layer without reading or changing its variables.

    Args:
        layer: Keras layer.
        inputs: nest of tensors `[batch, ...]`.
        values: list of tensors, in the order of `layer.variables`.

    Returns:
        Nest of tensors `[batch, ...]`.
    """
    with keras.StatelessScope(state_mapping=list(zip(layer.variables, values)), initialize_variables=False):
        return stage_layers.call_layers([layer], inputs, training=True)


def forward_and_backward(layer: Any, inputs: Any, values: list[tf.Tensor],
                         output_gradients: Callable[[list[tf.Tensor]], list[tf.Tensor]]) -> tuple[Any, list[tf.Tensor]]:
    """Calls a built layer and computes the gradients of its floating-point inputs and its weights.

    Args:
        layer: Keras layer.
        inputs: nest of tensors `[batch, ...]`.
        values: list of tensors, in the order of `layer.variables`.
        output_gradients: function from the floating-point outputs to the list of their gradients.

    Returns:
        Nest of outputs, and the list of gradients, of the inputs first, then of the trainable variables.
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
    """Returns the floating-point tensors, or specs, of a nest as a list."""
    return [tensor for tensor in tf.nest.flatten(nest) if tensor.dtype.is_floating]


class Flops(NamedTuple):
    """Floating-point operations: `contractions` (two per multiply-add) and `elementwise` (one per output value)."""

    contractions: int
    elementwise: int

    @property
    def total(self) -> int:
        """Both together."""
        return self.contractions + self.elementwise


def count_flops(graph: tf.Graph) -> Flops:
    """Counts the floating-point operations of one execution of a traced function.

    Args:
        graph: `tf.Graph` with static shapes, such as that of a concrete function. The bodies of loops count once.

    Returns:
        `Flops`.
    """
    counts = [operation_flops(operation) for operation in graph.get_operations()]
    return Flops(sum(count.contractions for count in counts), sum(count.elementwise for count in counts))


def operation_flops(operation: tf.Operation) -> Flops:
    """Counts one operation, including the functions that it calls; see `count_flops`."""
    contractions = elementwise = 0
    if operation.type in _CONTRACTIONS:
        contractions = 2 * multiply_adds(operation)
    elif operation.type not in _FREE and operation.inputs and operation.outputs and _is_float(operation.outputs[0]):
        elementwise = _size(operation.outputs[0])
    for body in called_graphs(operation, operation.graph):
        inner = count_flops(body)
        contractions, elementwise = contractions + inner.contractions, elementwise + inner.elementwise
    return Flops(contractions, elementwise)


def multiply_adds(operation: tf.Operation) -> int:
    """Returns the multiply-adds of a matrix product, a convolution or the gradient of one; 0 for other operations."""
    return _CONTRACTIONS[operation.type](operation) if operation.type in _CONTRACTIONS else 0


def _is_float(tensor):
    return tensor.dtype.is_floating


def _size(tensor):
    return math.prod(dimension or 1 for dimension in tensor.shape.as_list()) if tensor.shape.rank is not None else 0


def _matrix_product(operation):
    transposed = operation.get_attr('transpose_a' if operation.type == 'MatMul' else 'adj_x')
    return _size(operation.outputs[0]) * (operation.inputs[0].shape[-2 if transposed else -1] or 1)


def _convolution(operation):
    kernel = operation.inputs[1].shape.as_list()
    return _size(operation.outputs[0]) * math.prod(kernel[:-1])


def _depthwise_convolution(operation):
    return _size(operation.outputs[0]) * math.prod(operation.inputs[1].shape.as_list()[:2])


def _gradient_by_inputs(operation):
    _, kernel, output_gradient = operation.inputs
    return _size(output_gradient) * math.prod(kernel.shape.as_list()[:-1])


def _gradient_by_kernel(operation):
    return _size(operation.inputs[2]) * math.prod(operation.outputs[0].shape.as_list()[:-1])


def _depthwise_gradient_by_inputs(operation):
    _, kernel, output_gradient = operation.inputs
    return _size(output_gradient) * math.prod(kernel.shape.as_list()[:2])


def _depthwise_gradient_by_kernel(operation):
    return _size(operation.inputs[2]) * math.prod(operation.outputs[0].shape.as_list()[:2])


def _einsum(operation):
    """Product of the sizes of all labels; the dimensions that '...' stands for are numbered from the right."""
    terms = operation.get_attr('equation').decode().split('->')[0].split(',')
    sizes = {}
    for term, tensor in zip(terms, operation.inputs):
        head, _, tail = term.partition('...')
        labels = [*head, *range(tensor.shape.rank - len(head) - len(tail), 0, -1), *tail]
        for label, size in zip(labels, tensor.shape.as_list()):
            sizes[label] = max(size or 1, sizes.get(label, 1))
    return math.prod(sizes.values()) if len(terms) > 1 else 0


_CONTRACTIONS = {
    'MatMul': _matrix_product,
    'BatchMatMul': _matrix_product,
    'BatchMatMulV2': _matrix_product,
    'BatchMatMulV3': _matrix_product,
    'Conv2D': _convolution,
    'Conv3D': _convolution,
    'DepthwiseConv2dNative': _depthwise_convolution,
    'Conv2DBackpropInput': _gradient_by_inputs,
    'Conv2DBackpropFilter': _gradient_by_kernel,
    'Conv3DBackpropInputV2': _gradient_by_inputs,
    'Conv3DBackpropFilterV2': _gradient_by_kernel,
    'DepthwiseConv2dNativeBackpropInput': _depthwise_gradient_by_inputs,
    'DepthwiseConv2dNativeBackpropFilter': _depthwise_gradient_by_kernel,
    'Einsum': _einsum,
}


def called_graphs(operation: tf.Operation, graph: tf.Graph) -> list:
    """Returns the graphs of the functions that an operation calls, such as the body of a loop."""
    names = [value.func.name for value in operation.node_def.attr.values() if value.HasField('func')]
    functions = (graph._get_function(name) for name in names)  # pylint: disable=protected-access
    return [function.graph for function in functions if getattr(function, 'graph', None) is not None]


class LayerAnalysis(NamedTuple):
    """One layer of a stack.

    Attributes:
        name: name of the layer.
        kind: class of the layer.
        num_parameters: number of trainable parameters.
        num_state: number of other values that the layer keeps, such as moving averages.
        flops: `Flops` of the forward pass of one example.
        outputs: nest of `tf.TensorSpec` with a batch of one example.
        has_backward: whether it has a backward pass: in a Keras model, whether it has a trained weight, or its inputs
            depend on one. Always True for a layer that Params describe.
        num_frozen: how many of `num_state` are weights that would be trained if they were not frozen.
    """

    name: str
    kind: str
    num_parameters: int
    num_state: int
    flops: Flops
    outputs: Any
    has_backward: bool = True
    num_frozen: int = 0


def analyse_layers(layer_params: list[hyperparams.InstantiableParams], input_specs: Any) -> list[LayerAnalysis]:
    """Analyses a stack of layers without allocating any weight.

    Args:
        layer_params: list of InstantiableParams of Keras layers.
        input_specs: nest of `tf.TensorSpec` of the input; the batch dimension is replaced by one example.

    Returns:
        List of `LayerAnalysis`. Layers with equal params and inputs are analysed once.
    """
    specs = tf.nest.map_structure(lambda spec: tf.TensorSpec([1, *spec.shape[1:]], spec.dtype), input_specs)
    known, analyses = {}, []
    for params in layer_params:
        name = params.name
        key = identity(params), str(specs)
        if key not in known:
            known[key] = _analyse(params, specs)
        analyses.append(known[key]._replace(name=name))
        specs = analyses[-1].outputs
    return analyses


def identity(params: hyperparams.InstantiableParams) -> str:
    """Returns the text of a layer's params without its name, so that equal layers have equal texts."""
    return params.Copy().Set(name=None).ToText()


def named_layer_params(layer_params: list[hyperparams.InstantiableParams],
                       dtype_policy: str | None = None) -> list[hyperparams.InstantiableParams]:
    """Returns copies of layer params in which each layer has a unique name, the same for any number of partitions.

    Args:
        layer_params: list of InstantiableParams of Keras layers.
        dtype_policy: name of the policy for layers without one; None leaves it open.

    Raises:
        ValueError: two layers have the same name.
    """
    named = []
    for index, params in enumerate(layer_params):
        default = f'{_snake_case(params.cls.__name__)}_{index}'
        if 'name' not in params:
            raise ValueError(
                f'layers[{index}], a {params.cls.__name__}, takes no argument name, which checkpoints need. Give its '
                'constructor **kwargs, and pass them on in super().__init__(**kwargs).')
        named.append(base_layer.with_policy(params, dtype_policy).Set(name=params.name or default))
    names = [params.name for params in named]
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise ValueError(
            f'layers has more than one layer named {doubled}: checkpoints need a name for each. Rename one.')
    return named


def build_layer(layer: keras.layers.Layer, input_specs: Any) -> None:
    """Creates a layer's weights for inputs of the given nest of `tf.TensorSpec`, for any batch size.

    A layer without `build`, or whose `build` does not build all layers inside, is called on symbolic tensors.
    """
    shapes = tf.nest.map_structure(lambda spec: (None, *spec.shape[1:]), input_specs)
    builds_itself = type(layer).build is not keras.layers.Layer.build
    if builds_itself and not layer.built:
        layer.build(shapes)
    if not builds_itself or not all(sublayer.built for sublayer in layer._flatten_layers(include_self=False)):
        symbols = tf.nest.map_structure(
            lambda spec: keras.KerasTensor((None, *spec.shape[1:]), spec.dtype.name), input_specs)
        layer(symbols)


def _snake_case(name):
    return re.sub(r'(?<=[a-z0-9])(?=[A-Z])', '_', name).lower()


def _analyse(params, specs):
    with base_layer.unallocated_variables():
        layer = params.Instantiate()
        build_layer(layer, specs)
        variables = layer.variables

        def trace(inputs, values):
            with keras.StatelessScope(state_mapping=list(zip(variables, values)), initialize_variables=False):
                return stage_layers.call_layers([layer], inputs, training=True)

        concrete = control_flow.until_traced(
            tf.function(
                trace, autograph=False, experimental_attributes=graph_pieces.WITHOUT_ORDER).get_concrete_function,
            specs, [tf.TensorSpec(variable.shape, variable.dtype) for variable in variables])
    borrowed = {id(variable) for variable in getattr(layer, 'borrowed_variables', [])}  # these count at another layer
    own = [variable for variable in layer.weights if id(variable) not in borrowed]
    sizes = [(variable.trainable, math.prod(variable.shape)) for variable in own]
    frozen = base_layer.frozen_weights([layer])
    outputs = tf.nest.map_structure(
        lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype), concrete.structured_outputs)
    return LayerAnalysis(
        name=layer.name, kind=type(layer).__name__,
        num_parameters=sum(size for is_trainable, size in sizes if is_trainable),
        num_state=sum(size for is_trainable, size in sizes if not is_trainable),
        flops=count_flops(concrete.graph), outputs=outputs,
        num_frozen=sum(math.prod(weight.shape) for weight in frozen if id(weight) not in borrowed))
