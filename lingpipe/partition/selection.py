"""Choice of the tensors that a stage retains with recompute='selective'.

Large tensors that are fast to compute are recomputed. An operation takes as long as its arithmetic or as moving its
data, whichever is longer (roofline model, Williams et al., CACM 52(4), 2009). The choice solves an integer program. The
result for a decoder block on CPUs is::

    norm ─> q, k, v ─> scores ─> softmax ─> context ─> projection ─> + ─> norm ─> hidden ─> GELU ─> projection ─> +
    again     kept     again      again       again       again    kept   again     kept     again     again
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import scipy  # which imports its parts on first use
import tensorflow as tf

from lingpipe.devices import device_kinds
from lingpipe.partition import layer_analysis, layer_memory, layer_profile
from lingpipe.stages import graph_pieces

# Floating-point operations of a processor core, and of an accelerator, in the time that moving a byte takes.
_OPERATIONS_A_BYTE_ON_CPUS, _OPERATIONS_A_BYTE = 5, 200
# Operations that read no more of their first input than they return.
_LOOKUPS = frozenset(('GatherV2', 'Slice', 'StridedSlice'))
_LOOPS = frozenset(('While', 'StatelessWhile'))
# The choice is proven to be the best to within a thousandth, or it is the best that was found within a minute.
_OPTIONS = {'mip_rel_gap': 1e-3, 'time_limit': 60.0}
# Factor of the second criterion, which decides between choices that are equally good by the first.
_LESS_IMPORTANT = 1e-4


def kept_tensors(forward: Iterable[tf.Operation], residuals: list[tf.Tensor], given: list[tf.Tensor], device: str,
                 most_bytes: float | None = None) -> list[tf.Tensor]:
    """Return the tensors that a forward pass retains. All other residuals are recomputed from these tensors.

    Args:
        forward: the operations of the forward pass, in the order of their graph.
        given: tensors that are retained anyway: inputs, weights, and results of operations that must not run twice.
        most_bytes: limit of the bytes to retain. None: retain the fewest bytes for which recomputation takes at most
            `layer_profile.MOST_SELECTIVE` of a forward pass.
    """
    ratio = _OPERATIONS_A_BYTE_ON_CPUS if device_kinds.kind_of(device) == 'CPU' else _OPERATIONS_A_BYTE
    return _Selection(list(forward), residuals, given, ratio).kept(most_bytes)


def size(tensors: Iterable[tf.Tensor]) -> int:
    """Return the sum of the bytes of tensors. An unknown dimension counts as 1."""
    return sum(layer_memory.size([tf.TensorSpec([dimension or 1 for dimension in tensor.shape], tensor.dtype)])
               for tensor in tensors if tensor.shape.rank is not None)


class _Selection:
    """The choice of the tensors that a forward pass retains."""

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
        self._choice = Choice(
            costs=[self._cost(operation) for operation in self._nodes],
            sizes=[size([ref.deref()]) for ref, _ in made], makers=[node for _, node in made],
            reads=[(node, place) for node, operation in enumerate(self._nodes)
                   for place in self._places_of(operation.inputs)],
            wanted=sorted(self._places_of(residuals)),
            unrepeatable=[node for node, operation in enumerate(self._nodes) if operation.type in _LOOPS])

    def kept(self, most_bytes):
        """Return the tensors to retain."""
        choice = self._choice
        if most_bytes is None:
            whole = sum(map(self._cost, self._forward))
            repeated = choice.least_bytes(layer_profile.MOST_SELECTIVE * whole)
        else:
            repeated = choice.least_cost(most_bytes)
        read, others = choice.kept(repeated)
        # Equal operations run once in the forward pass, but recomputation looks for each operation's own tensor.
        made = [tensor for operation in self._operations for tensor in operation.outputs
                if operation.type not in layer_memory.SAME_BUFFER and self._place(tensor) in read]
        return made + [tensor for tensor in self._residuals if self._place(tensor) in others]

    def _place(self, tensor):
        return self._places.get(self._buffers[tensor])

    def _places_of(self, tensors):
        return {self._place(tensor) for tensor in tensors} - {None}

    def _cost(self, operation):
        flops = layer_analysis.operation_flops(operation).total
        written = size(operation.outputs)
        read = written if operation.type in _LOOKUPS else size(operation.inputs)
        return max(flops / self._ratio, read + written) + 1  # no operation is free


class Choice(NamedTuple):
    """The problem of which tensors to retain, and which operations to repeat."""

    costs: list  # of repeating each operation
    sizes: list  # of each tensor, in bytes
    makers: list  # for each tensor, the index of the operation that makes it
    reads: list  # pairs (operation, tensor): which of these tensors each operation reads
    wanted: list  # indices of the tensors that are needed later
    unrepeatable: list  # indices of the operations that must not be repeated

    def least_bytes(self, most_cost: float) -> np.ndarray:
        """Choose which operations to repeat. Minimize the retained bytes, at a total cost of at most `most_cost`.

        Returns:
            Boolean array with a value per operation. All values are False if no choice is found in time.
        """
        found = self._solve(
            _LESS_IMPORTANT * _scaled(self.costs), _scaled(self.sizes), self.costs + [0] * len(self.sizes), most_cost)
        return np.zeros(len(self.costs), bool) if found is None else found

    def least_cost(self, most_bytes: float) -> np.ndarray:
        """Choose which operations to repeat. Minimize the cost, with at most `most_bytes` retained.

        Returns:
            Boolean array with a value per operation. If nothing fits, the choice retains the fewest bytes.
        """
        found = self._solve(
            _scaled(self.costs), _LESS_IMPORTANT * _scaled(self.sizes), [0] * len(self.costs) + self.sizes, most_bytes)
        return self.least_bytes(np.inf) if found is None else found

    def kept(self, repeated: np.ndarray) -> tuple[set[int], set[int]]:
        """Return the indices of retained tensors in two sets: tensors that repeated operations read, and the others."""
        read = {tensor for operation, tensor in self.reads if repeated[operation] and not repeated[self.makers[tensor]]}
        wanted = {tensor for tensor in self.wanted if not repeated[self.makers[tensor]]}
        return read, wanted - read

    def _solve(self, costs, sizes, limited, limit):
        """Return which operations to repeat, or None if no solution is found."""
        if not self.wanted:
            return np.zeros(len(self.costs), bool)
        # x: an operation is repeated; y: a tensor is kept. A wanted tensor is kept or recomputed: x + y >= 1. The same
        # holds for what a repeated operation reads: x + y >= x of that operation. Without the limit the matrix is that
        # of a minimum cut, whose solutions are integers anyway.
        readers, read = np.array(self.reads, np.int64).reshape([-1, 2]).T
        tensors, makers = np.array([*self.wanted, *read]), np.array(self.makers)
        rows, first = np.arange(len(tensors)), len(self.costs)
        matrix = scipy.sparse.coo_array((
            np.concatenate([np.ones(2 * len(rows)), -np.ones(len(readers))]),
            (np.concatenate([rows, rows, rows[len(self.wanted):]]),
             np.concatenate([makers[tensors], first + tensors, readers]))), [len(rows), first + len(self.sizes)])
        constraints = [scipy.optimize.LinearConstraint(matrix.tocsr(), lb=(rows < len(self.wanted)).astype(float))]
        if np.isfinite(limit):
            scale = max(*limited, 1.0)
            constraints.append(scipy.optimize.LinearConstraint(np.array([limited]) / scale, ub=limit / scale))
        most = np.ones(first + len(self.sizes))
        most[self.unrepeatable] = 0
        found = scipy.optimize.milp(
            np.concatenate([costs, sizes]), integrality=np.arange(len(most)) < first,
            bounds=scipy.optimize.Bounds(0, most), constraints=constraints, options=_OPTIONS)
        return None if found.x is None else found.x[:first] > 0.5


def _scaled(values):
    values = np.asarray(values, np.float64)
    return values * len(values) / max(values.sum(), 1.0)
