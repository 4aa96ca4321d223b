"""An estimate of the memory that a run of layers needs on its device, before anything is allocated.

::

    recompute    for each layer                     for each micro-batch that waits   for the layer at work
    'none'       weights                            inputs + internals of all layers  outputs, their gradients
    'stage'      weights, inputs + internals, once  inputs of the first layer         outputs, their gradients
    'layer'      weights, inputs, once              inputs of the first layer         internals, outputs, their gradients

Weights count with their gradient sums and optimizer slots. Internals are what a layer's backward pass reads besides inputs,
outputs and weights. What the runtime and the kernels take for themselves, tensors that die within a layer's forward pass, the
loss and the input pipeline are not in the estimate: leave a fifth of a device for them.
"""

import collections
import math
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from lingpipe.layers import unallocated
from lingpipe.pipeline import action as actions
from lingpipe.pipeline import analysis, graph_pieces, layer_function

RECOMPUTE = ('none', 'stage', 'layer')
_SAME_BUFFER = ('Identity', 'Reshape', 'Squeeze', 'ExpandDims', 'StopGradient')


class LayerMemory(NamedTuple):
    """Sizes in bytes of what one layer has, and of what it handles for one micro-batch.

    Attributes:
        weights: its trainable variables.
        state: its other variables, such as moving averages.
        inputs: its inputs.
        internals: what it computes for its backward pass to read, besides its outputs.
        outputs: its outputs.
        read_inputs: those of its inputs that its backward pass reads.
    """

    weights: int
    state: int
    inputs: int
    internals: int
    outputs: int
    read_inputs: int = 0


class MemoryEstimate:
    """Bytes that any run of layers needs as a partition, as `partition.balanced_partition_ends` asks for them.

    A run counts no less than its last layers alone would, even where it has smaller inputs to keep: then a longer run never
    needs less, which the search for the best cut relies on.

    Args:
        layers: list of `LayerMemory`.
        live_micro_batches: for each partition, the most micro-batches whose activations it keeps at once, as
            `live_micro_batches` finds them. Where a later partition keeps more, an earlier one counts as many.
        recompute: 'none', 'stage' or 'layer'.
        num_slots: tensors that the optimizer keeps for each weight: 0 for SGD, 1 with momentum, 2 for Adam, one more for
            moving averages of the weights.
        entering: for each layer, the bytes that enter a partition which begins with it; None: its inputs.
    """

    def __init__(self, layers, live_micro_batches, recompute, num_slots, entering=None):
        columns = LayerMemory(*np.array(layers, np.int64).T)
        live = np.maximum.accumulate(np.array(live_micro_batches)[::-1])[::-1, np.newaxis]
        kept = columns.inputs + (0 if recompute == 'layer' else columns.internals)
        added = (2 + num_slots) * columns.weights + columns.state + kept * (live if recompute == 'none' else 1)
        self._sums = np.pad(np.cumsum(np.broadcast_to(added, [len(live), len(layers)]), axis=1), [[0, 0], [1, 0]])
        waiting = 0 if recompute == 'none' else (live - 1) * (columns.inputs if entering is None else np.array(entering))
        at_work = 2 * columns.outputs + (columns.internals if recompute == 'layer' else 0)
        self._largest_start = RangeMaximum(waiting - self._sums[:, :-1])
        self._largest_at_work = RangeMaximum(at_work[np.newaxis])

    def __call__(self, partitions, starts, ends):
        """Returns the bytes of partitions that hold layers `start` to `end - 1`.

        Args:
            partitions: array of indices of partitions.
            starts: array of indices of their first layers.
            ends: array of indices that follow their last layers, greater than `starts`.
        """
        return (self._sums[partitions, ends] + self._largest_start(partitions, starts, ends)
                + self._largest_at_work(0, starts, ends))


class RangeMaximum:
    """The largest of `values[row, start:end]` for whole arrays of rows, starts and ends.

    Level j of the table holds the maximum of the 2^j values from each place on; two such runs cover any range.

    Args:
        values: array `[rows, columns]`.
    """

    def __init__(self, values):
        self._table = [values]
        while (width := 2 ** len(self._table)) <= values.shape[1]:
            level = self._table[-1].copy()
            level[:, :-width // 2] = np.maximum(level[:, :-width // 2], level[:, width // 2:])
            self._table.append(level)
        self._table = np.stack(self._table)

    def __call__(self, rows, starts, ends):
        levels = np.frexp(ends - starts)[1] - 1
        return np.maximum(self._table[levels, rows, starts], self._table[levels, rows, ends - (1 << levels)])


def live_micro_batches(schedule):
    """Counts the micro-batches whose activations a schedule makes each stage keep at once.

    Args:
        schedule: `Schedule`. Where it splits the backward pass, activations count until W, though W needs only a part.

    Returns:
        List of integers, one a stage.
    """
    done = actions.WEIGHT if schedule.splits_backward else actions.BACKWARD
    live, most = collections.Counter(), [1] * schedule.num_stages
    for action in (action for device in schedule.device_actions for action in device):
        live[action.stage] += (action.kind == actions.FORWARD) - (action.kind == done)
        most[action.stage] = max(most[action.stage], live[action.stage])
    return most


def layer_memories(layer_params, input_specs):
    """Measures the tensors of a stack of layers without allocating any.

    Args:
        layer_params: list of InstantiableParams of Keras layers.
        input_specs: nest of `tf.TensorSpec` `[micro_batch, ...]` of the input, every dimension known.

    Returns:
        List of `LayerMemory`. Layers with equal params and inputs are traced once.
    """
    known, memories, specs = {}, [], input_specs
    for params in layer_params:
        key = (params.Copy().Set(name=None).ToText(), str(specs))
        if key not in known:
            with unallocated.unallocated_variables():
                layer = params.Instantiate()
                analysis.build_layer(layer, specs)
                known[key] = measure(layer, specs)
        memory, specs = known[key]
        memories.append(memory)
    return memories


def measure(layer, specs):
    """Traces a layer forward and backward.

    Args:
        layer: built layer; its variables need not be allocated.
        specs: nest of `tf.TensorSpec` of its inputs.

    Returns:
        `LayerMemory` of the layer, and the nest of the specs of its outputs.
    """
    variables = layer.variables
    trainable = {id(variable) for variable in layer.trainable_variables}
    given, results = [], {}

    def output_gradients(outputs):
        given.extend(tf.compat.v1.placeholder(tensor.dtype, tensor.shape) for tensor in outputs)
        return given

    def trace(inputs, values):
        results['outputs'], results['gradients'] = layer_function.forward_and_backward(
            layer, inputs, values, output_gradients)

    graph = tf.function(trace, autograph=False).get_concrete_function(
        specs, [tf.TensorSpec(variable.shape, variable.dtype) for variable in variables]).graph
    outputs, read = tf.nest.flatten(results['outputs']), _read_by_backward(graph, given, results['gradients'])
    inputs = {tensor.ref() for tensor in graph.inputs[:len(tf.nest.flatten(specs))]}
    memory = LayerMemory(
        weights=size(variable for variable in variables if id(variable) in trainable),
        state=size(variable for variable in layer.weights if id(variable) not in trainable),
        inputs=size(tf.nest.flatten(specs)), outputs=size(outputs),
        internals=size(_internals(graph, outputs, read)), read_inputs=size(ref.deref() for ref in inputs & read))
    return memory, tf.nest.map_structure(lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype), results['outputs'])


def _read_by_backward(graph, given, gradients):
    """Returns the references of all that the backward pass reads and that was there before it."""
    backward = graph_pieces.descendants(graph, given)
    needed = graph_pieces.ancestors(gradients) & backward
    forward = graph_pieces.descendants(graph, graph.inputs) - backward
    return {_buffer(tensor).ref() for operation in needed for tensor in operation.inputs if tensor.op in forward}


def _internals(graph, outputs, read):
    """Returns what the forward pass computes and the backward pass reads; outputs count elsewhere."""
    return [ref.deref() for ref in read - {_buffer(tensor).ref() for tensor in [*graph.inputs, *outputs]}]


def _buffer(tensor):
    """Returns the tensor whose memory `tensor` shares."""
    while tensor.op.type in _SAME_BUFFER:
        tensor = tensor.op.inputs[0]
    return tensor


def size(tensors):
    """Returns the bytes of tensors, specs or variables; those without a shape, such as lists that loops keep, count nothing."""
    return sum(math.prod(tensor.shape) * tf.as_dtype(tensor.dtype).size for tensor in tensors
               if tf.TensorShape(tensor.shape).is_fully_defined())
