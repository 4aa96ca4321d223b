"""What recompute='selective' keeps of a stage: large tensors that are fast to compute are recomputed.

The time of an operation is that of its arithmetic or of moving its data, whichever is longer (the roofline model,
Williams et al., CACM 52(4), 2009). The unit of time is the time to move a byte, so a device is described only by its
ratio of arithmetic to bandwidth. For a decoder block::

    norm ─> q, k, v ─> scores ─> softmax ─> context ─> projection ─> + ─> norm ─> hidden ─> GELU ─> projection ─> +
    again     kept     again      again       kept        kept     again  again     kept     again     kept

The scores of attention are a product, but a small one compared with the size of their mask and softmax.
"""

from collections.abc import Iterable

import tensorflow as tf

from lingpipe.devices import device_kinds
from lingpipe.partition import layer_analysis, layer_memory, least_recomputation, stage_costs
from lingpipe.stages import graph_pieces

# Floating-point operations in the time in which a byte is moved: a processor core's, and an accelerator's.
_OPERATIONS_A_BYTE = {'CPU': 5}
_OPERATIONS_A_BYTE_ELSEWHERE = 200
# Operations that read no more of their first input than they return.
_LOOKUPS = frozenset(('GatherV2', 'Slice', 'StridedSlice'))
_LOOPS = frozenset(('While', 'StatelessWhile'))


def kept_tensors(forward: Iterable[tf.Operation], residuals: list[tf.Tensor], given: list[tf.Tensor], device: str,
                 most_bytes: float | None = None) -> list[tf.Tensor]:
    """Chooses what a forward pass keeps, from which the rest of the residuals is recomputed.

    Args:
        forward: the operations of the forward pass, in the order of their graph.
        residuals: tensors that they make and the backward pass reads.
        given: tensors that exist in any case, such as inputs, weights, and what cannot be computed twice.
        device: name of the device.
        most_bytes: the most bytes to keep, so that recomputation is as short as possible; None: as few bytes as
            possible are kept, while recomputation takes at most `stage_costs.MOST_SELECTIVE` of the forward pass's
            time.

    Returns:
        List of tensors; some of them may not be residuals.
    """
    return _Selection(list(forward), residuals, given, _ratio(device)).kept(most_bytes)


def size(tensors: Iterable[tf.Tensor]) -> int:
    """Returns the bytes of tensors that do not share buffers; an unknown size counts as 1."""
    return sum(layer_memory.size([tf.TensorSpec([dimension or 1 for dimension in tensor.shape], tensor.dtype)])
               for tensor in tensors if tensor.shape.rank is not None)


class _Selection:
    """The graph of a forward pass as a `least_recomputation.Choice`.

    Args:
        forward: list of its operations.
        residuals: list of the wanted tensors.
        given: list of tensors that exist in any case.
        ratio: floating-point operations in the time in which a byte is moved.
    """

    def __init__(self, forward, residuals, given, ratio):
        self._residuals, self._ratio = residuals, ratio
        free = {tensor.ref() for tensor in given}
        self._buffers = layer_memory.Buffers(forward)
        needed = graph_pieces.ancestors([tensor for tensor in residuals if tensor.ref() not in free], stops=free)
        makers = {tensor.op for tensor in given}
        self._forward = [
            operation for operation in forward if operation not in makers and self._buffers.is_first(operation)]
        self._operations = [operation for operation in forward if operation in needed - makers]
        self._nodes = [operation for operation in self._operations if self._buffers.is_first(operation)]
        made = [(tensor.ref(), node) for node, operation in enumerate(self._nodes) for tensor in operation.outputs]
        self._places = {ref: place for place, (ref, _) in enumerate(made)}
        self._choice = least_recomputation.Choice(
            costs=[self._cost(operation) for operation in self._nodes],
            sizes=[size([ref.deref()]) for ref, _ in made], makers=[node for _, node in made],
            reads=[(node, place) for node, operation in enumerate(self._nodes)
                   for place in self._places_of(operation.inputs)],
            wanted=sorted(self._places_of(residuals)),
            unrepeatable=[node for node, operation in enumerate(self._nodes) if operation.type in _LOOPS])

    def kept(self, most_bytes):
        """Returns the list of tensors; see `kept_tensors`."""
        choice = self._choice
        if most_bytes is None:
            whole = sum(map(self._cost, self._forward))
            repeated = choice.least_bytes(stage_costs.MOST_SELECTIVE * whole)
        else:
            repeated = choice.least_cost(most_bytes)
        read, others = choice.kept(repeated)
        # Equal operations run once in the forward pass, but recomputation looks for each operation's own tensor.
        made = [tensor for operation in self._operations for tensor in operation.outputs
                if not self._is_view(operation) and self._place(tensor) in read]
        return made + [tensor for tensor in self._residuals if self._place(tensor) in others]

    def _place(self, tensor):
        return self._places.get(self._buffers[tensor])

    def _places_of(self, tensors):
        return {self._place(tensor) for tensor in tensors} - {None}

    def _is_view(self, operation):
        return operation.type in layer_memory.SAME_BUFFER

    def _cost(self, operation):
        flops = layer_analysis.operation_flops(operation).total
        written = size(operation.outputs)
        read = written if operation.type in _LOOKUPS else size(operation.inputs)
        return max(flops / self._ratio, read + written) + 1  # no operation is free


def _ratio(device):
    return _OPERATIONS_A_BYTE.get(device_kinds.kind_of(device), _OPERATIONS_A_BYTE_ELSEWHERE)
