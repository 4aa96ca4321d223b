"""Which tensors to keep and which operations to repeat: the exact choice, as an integer program."""

from typing import NamedTuple

import numpy as np
import scipy.optimize
import scipy.sparse

# The choice is proven to be the best to within a thousandth, or it is the best that was found within a minute.
_OPTIONS = {'mip_rel_gap': 1e-3, 'time_limit': 60.0}
# Factor of the second criterion, which decides between choices that are equally good by the first.
_LESS_IMPORTANT = 1e-4


class Choice(NamedTuple):
    """The tensors that are needed later, and the operations that compute them.

    Attributes:
        costs: for each operation, what it costs to repeat it.
        sizes: for each tensor, its bytes.
        makers: for each tensor, the index of the operation that makes it.
        reads: list of pairs (operation, tensor): which of these tensors each operation reads.
        wanted: list of the indices of the tensors that are needed later.
        unrepeatable: list of the indices of the operations that must not be repeated.
    """

    costs: list
    sizes: list
    makers: list
    reads: list
    wanted: list
    unrepeatable: list

    def least_bytes(self, most_cost: float) -> np.ndarray:
        """Returns, for each operation, whether it is repeated, so that as few bytes as possible are kept.

        Args:
            most_cost: the most that repeating operations may cost. If no choice is found in time, nothing is repeated.
        """
        found = self._solve(
            _LESS_IMPORTANT * _scaled(self.costs), _scaled(self.sizes), self.costs + [0] * len(self.sizes), most_cost)
        return np.zeros(len(self.costs), bool) if found is None else found

    def least_cost(self, most_bytes: float) -> np.ndarray:
        """Returns, for each operation, whether it is repeated, so that repeating costs as little as possible.

        Args:
            most_bytes: the most that may be kept; if that is too little, as little as possible is kept.
        """
        found = self._solve(
            _scaled(self.costs), _LESS_IMPORTANT * _scaled(self.sizes), [0] * len(self.costs) + self.sizes, most_bytes)
        return self.least_bytes(np.inf) if found is None else found

    def kept(self, repeated: np.ndarray) -> tuple[set[int], set[int]]:
        """Returns the indices of the tensors to keep: those that repeated operations read, and other wanted ones.

        Args:
            repeated: for each operation, whether it is repeated.
        """
        read = {tensor for operation, tensor in self.reads if repeated[operation] and not repeated[self.makers[tensor]]}
        wanted = {tensor for tensor in self.wanted if not repeated[self.makers[tensor]]}
        return read, wanted - read

    def _solve(self, costs, sizes, limited, limit):
        """Solves for x (an operation is repeated) and y (a tensor is kept), each 0 or 1.

        A wanted tensor is kept or recomputed: x + y >= 1. The same holds for what a repeated operation reads:
        x + y >= x of that operation. Without the limit the matrix is that of a minimum cut, whose solutions are
        integers anyway.
        """
        if not self.wanted:
            return np.zeros(len(self.costs), bool)
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
