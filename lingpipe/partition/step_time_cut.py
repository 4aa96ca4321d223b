"""The cut with the shortest step: the schedule waits least with this cut, which may not be the most even one.

A step takes as long as its longest chain of actions. With many micro-batches, that chain stays on the device of the
heaviest partition. With few, much of the chain goes through all partitions, down to the last and back, so the other
partitions count too. With one micro-batch the chain is the sum of all partitions, and every cut is equal.

If there are not too many cuts, all are simulated at once: the order of actions is the same for each cut, so each time
is an array with one entry per cut. Otherwise a search walks from the most even cut to better neighbours.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from lingpipe.partition.stage_costs import StageCostModel
from lingpipe.schedules import BACKWARD, FORWARD, Action, Schedule

_MOST_TIMES = 2**25  # actions times cuts that are simulated to find the best of all cuts
_TIMES_AT_ONCE = 2**22


def fastest_ends(schedule: Schedule, model: StageCostModel, start: Sequence[int],
                 fits: Callable[[np.ndarray], np.ndarray] | None = None) -> list[int]:
    """Find the cut with the shortest simulated step.

    If there are so few cuts that all can be simulated within a second, the result is exact. Otherwise it is at
    least as good as `start`, and no small change makes it better.

    Args:
        start: end indices of a cut that fits, such as the most even one.
        fits: function from end indices `[cuts, stages]` to a boolean array `[cuts]`: whether every device has room.
    """
    simulation = _Simulation(schedule, model)
    num_actions = sum(map(len, schedule.device_actions))
    if math.comb(model.num_layers - 1, schedule.num_stages - 1) * num_actions <= _MOST_TIMES:
        return _best_fitting(_all_cuts(model.num_layers, schedule.num_stages), simulation, start, fits)[1]
    return _improved(simulation, start, fits)


def _all_cuts(num_layers, num_stages):
    inner = itertools.combinations(range(1, num_layers), num_stages - 1)
    count = math.comb(num_layers - 1, num_stages - 1)
    ends = np.fromiter(itertools.chain.from_iterable(inner), np.int64).reshape([count, num_stages - 1])
    return np.pad(ends, [[0, 0], [0, 1]], constant_values=num_layers)


def _improved(simulation, start, fits):
    """Walk to the best neighbour as long as that is better."""
    best, seconds = list(start), simulation.step_times(np.array([start]))[0]
    while True:
        found_seconds, found = _best_fitting(_neighbours(best), simulation, best, fits)
        if not found_seconds < seconds * (1 - 1e-12):
            return best
        best, seconds = found, found_seconds


def _best_fitting(cuts, simulation, start, fits):
    """Return the shortest step time, and the end indices of that cut as a list; `start` wins ties."""
    cuts = np.concatenate([[start], cuts if fits is None else cuts[fits(cuts)]])
    seconds = simulation.step_times(cuts)
    best = np.argmin(seconds)
    return seconds[best], cuts[best].tolist()


def _neighbours(ends: Sequence[int]) -> np.ndarray:
    """Return cuts in which one run of ends, or two single ends, are moved up or down by a layer or two."""
    found = set()
    for change in _changes(len(ends) - 1):
        cut = tuple(end + by for end, by in zip(ends, change)) + (ends[-1],)
        if all(earlier < later for earlier, later in itertools.pairwise((0, *cut))):
            found.add(cut)
    return np.array(sorted(found), np.int64).reshape([len(found), len(ends)])


def _changes(count: int) -> Iterator[tuple[int, ...]]:
    for first, by in itertools.product(range(count), (-2, -1, 1, 2)):
        for last in range(first, count):
            yield tuple(by * (first <= place <= last) for place in range(count))
        for second in range(first + 1, count):
            yield tuple({first: by, second: -by}.get(place, 0) for place in range(count))


class _Simulation:
    """Simulates a schedule for many cuts at once, as `simulation.simulate` does for one."""

    def __init__(self, schedule: Schedule, model: StageCostModel) -> None:
        self._schedule, self._model = schedule, model
        self._order = schedule.execution_order()
        self._recomputing = schedule.backwards() - schedule.backwards_after_own_forward()

    def step_times(self, cuts: np.ndarray) -> np.ndarray:
        """Return seconds of a step with each cut."""
        at_once = max(1, _TIMES_AT_ONCE // len(self._order))
        return np.concatenate([self._step_times(cuts[first:first + at_once])
                               for first in range(0, len(cuts), at_once)])

    def _step_times(self, cuts):
        ends = np.ascontiguousarray(cuts.T)
        costs = self._model(np.concatenate([np.zeros_like(ends[:1]), ends[:-1]]), ends)
        free, done = self._run(costs), self._schedule.num_devices
        updates = np.zeros([done, len(cuts)])
        for stage, update in enumerate(costs[5]):
            updates[self._schedule.device_of(stage)] += update
        return np.max(free, axis=0) + np.max(updates, axis=0)

    def _run(self, costs):
        """Return for each device the time at which it has finished, as an array with one entry per cut."""
        free = np.zeros([self._schedule.num_devices, costs.shape[-1]])
        ends: dict[Action, np.ndarray] = {}
        for action in self._order:
            device = self._schedule.device_of(action.stage)
            begin = free[device]
            if action in self._recomputing:
                begin = begin + costs[3, action.stage]
            for needed in self._schedule.dependencies(action):
                begin = np.maximum(begin, self._arrival(ends[needed], needed, action, costs))
            seconds = self._duration(action, costs)
            ends[action] = begin + seconds
            exists = np.logical_or(seconds > 0, action.kind == FORWARD)
            free[device] = np.where(exists, ends[action], free[device])
        return free

    def _arrival(self, end, needed, action, costs):
        """Return when a needed result arrives: at once on the same device, after its transfer on another one."""
        if self._schedule.device_of(needed.stage) == self._schedule.device_of(action.stage):
            return end
        return end + costs[4, min(needed.stage, action.stage)]

    def _duration(self, action, costs):
        if action.kind == BACKWARD and not self._schedule.is_split(action):
            return costs[1, action.stage] + costs[2, action.stage]
        return costs[{FORWARD: 0, BACKWARD: 1}.get(action.kind, 2), action.stage]
