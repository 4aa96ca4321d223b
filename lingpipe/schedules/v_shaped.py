"""V-shaped schedules, in which stages go down the devices and up again.

Device s of K has stages s and 2 K - 1 - s. Device 0 has the first and the last stage, with the loss (Zero Bubble, arXiv
2401.10241, section 6). Here are three devices::

    device 0   stage 0   stage 5  -> loss
    device 1   stage 1   stage 4
    device 2   stage 2   stage 3

The path of one micro-batch is called the building block (arXiv 2405.15362, section 3). On each device, a micro-batch
takes six time slots, two for each of F, B and W. Each micro-batch takes the same path six slots after the
previous micro-batch. A building block has four legs and three turns. A leg goes through all devices, and a turn leads
from one leg to the next leg::

    device 0   F           F B           B         legs:   F down, F up, B down, B up
    device 1     F       F     B       B           turns:  F to F on the last device, F to B on the first,
    device 2       F   F         B   B                     B to B on the last

With shorter legs, fewer micro-batches are in flight, and devices wait longer. Ws fill the remaining slots. The chosen
building block has the shortest simulated step.
"""

import collections
import functools
import itertools
import math
import operator
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from lingpipe.schedules.schedule_type import Schedule, named
from lingpipe.schedules.simulation import StageCosts
from lingpipe.schedules.timeline import BACKWARD, FORWARD, WEIGHT, Action

_NUM_SLOTS = 6  # of a micro-batch on a device
_NUM_DIGITS = 9  # of the times that are compared
_ROUNDED_OFF = 1 - 1e-12
_MOST_ROUNDS = 2  # blocks are compared on at most this many micro-batches per device


class _Shape(NamedTuple):
    """The options of a V-shaped schedule."""

    # to choose among: tuples of the slots from one device to the next, for F down, F up, B down, B up
    legs: tuple[tuple[int, int, int, int], ...]
    most_activations: int  # how many stages' activations a device may keep at most from F to the end of B
    most_kept: tuple[int, ...]  # to choose among: the same limit up to the end of W


@named('zb_v', num_virtual_stages=2)
def zb_v(num_devices: int, num_micro_batches: int, costs: Sequence[StageCosts] | None = None) -> Schedule:
    """Keep all devices busy, with the activations of at most K micro-batches per device (ZB-V).

    See Zero Bubble, arXiv 2401.10241, section 6. For M >= 2 K and equal times of F, B and W, devices wait only until
    the first F reaches the last device. This takes as long as K - 1 forward passes through one stage. Here two devices
    run four micro-batches. '3F0' is the F of micro-batch 0 in stage 3::

        device 0  0F0-0F1-....3F0-3B0-0F2-3W0-3F1-3B1-0B0-3W1-0F3-0W0-3F2-3B2-0B1-3W2-3F3-3B3-0B2-0W1-0B3-3W3-0W2-0W3-
        device 1  ....1F0-2F0-1F1-2F1-2B0-1B0-2W0-1F2-1W0-2F2-2B1-1B1-2W1-1F3-1W1-2F3-2B2-1B2-2B3-1B3-2W2-1W2-2W3-1W3-
    """
    shape = _Shape(((3, 3, 3, 3), (2, 4, 2, 4)), 2 * num_devices, (2 * num_devices,))
    return _v_shaped('zb_v', num_devices, num_micro_batches, shape, costs)


@named('v_half', num_virtual_stages=2)
def v_half(num_devices: int, num_micro_batches: int, costs: Sequence[StageCosts] | None = None) -> Schedule:
    """Keep about half as many activations as 1F1B, and wait less than 1F1B (V-Half).

    See arXiv 2405.15362, section 3.2. Every device keeps the activations of at most (K + 2) // 2 micro-batches until
    their B. Including activations that wait for W, the limit is (K + 2) // 2 + 2.
    """
    most = 2 * ((num_devices + 2) // 2)
    shape = _Shape(((1, 2, 1, 2), (1, 2, 2, 1)), most, (most, most + 2, most + 4))
    return _v_shaped('v_half', num_devices, num_micro_batches, shape, costs)


def _v_shaped(name: str, num_devices: int, num_micro_batches: int, shape: Any, costs: Any) -> Schedule:
    costs = tuple(costs or [StageCosts().scaled(0.5)] * (2 * num_devices))
    block = _best_block(num_devices, min(num_micro_batches, _MOST_ROUNDS * num_devices), shape, costs)
    filling = _Filling(*block, num_micro_batches, costs)
    filling.run(shape)
    return Schedule(name, 2 * num_devices, num_micro_batches, tuple(map(tuple, filling.orders)))


class _Badness(NamedTuple):
    """Key to compare building blocks; the best block has the smallest key."""

    exceeds: float
    seconds: float
    peak_kept: int


_NOT_POSSIBLE = _Badness(math.inf, 0.0, 0)


@functools.lru_cache(maxsize=256)
def _best_block(num_devices: int, num_micro_batches: int, shape: Any, costs: Any) -> Any:
    """Try each building block with each limit in `shape.most_kept`, and return the best pair."""
    best, least = None, _NOT_POSSIBLE
    for block in itertools.product(_blocks(num_devices, shape), shape.most_kept):
        filling = _Filling(*block, num_micro_batches, costs)
        badness = filling.run(shape, least)
        if badness < least:
            best, least = block, badness
    return best


def _blocks(num_devices: int, shape: _Shape) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Yield building blocks: for each leg, the time slot on each device."""
    devices = range(num_devices)
    for legs in shape.legs:
        for turns in itertools.product(range(1, _NUM_SLOTS + 1), repeat=3):
            starts: list[list[int]] = []
            for leg, (step, turn) in enumerate(zip(legs, (0, *turns))):
                way = devices[::-1] if leg % 2 else devices
                before = starts[-1][way[0]] if starts else 0
                starts.append([before + turn + step * abs(device - way[0]) for device in devices])
            # Repeated every six slots, the block must not collide. Places repeat after six devices, as slots do.
            if all(len({slots[device] % _NUM_SLOTS for slots in starts}) == len(legs)
                   for device in devices[:_NUM_SLOTS]):
                yield tuple(map(tuple, starts))


def _passes(slots: Any, stages: Any, num_micro_batches: int) -> Any:
    """Return the Fs and Bs of a device in the order of time slots."""
    legs = zip(slots, (FORWARD, FORWARD, BACKWARD, BACKWARD), (*stages, *stages[::-1]))
    in_order = sorted((slot + _NUM_SLOTS * micro_batch, kind, stage, micro_batch)
                      for slot, kind, stage in legs for micro_batch in range(num_micro_batches))
    return [passed for _, *passed in in_order]


class _Filling:
    """Simulated step, in which Fs and Bs follow a building block and Ws fill the bubble."""

    # starts: for each leg (F down, F up, B down, B up), the time slot on each device
    # most_kept: most Fs that a device may have run without their Ws
    def __init__(self, starts: Sequence[Sequence[int]], most_kept: int, num_micro_batches: int,
                 costs: Sequence[StageCosts]) -> None:
        num_devices, self._most_kept = len(costs) // 2, most_kept
        stages = [(device, len(costs) - 1 - device) for device in range(num_devices)]
        self._passes = [_passes([slots[device] for slots in starts], stages[device], num_micro_batches)
                        for device in range(num_devices)]
        self._seconds = {FORWARD: [cost.forward for cost in costs],
                         BACKWARD: [cost.recompute + cost.backward for cost in costs],
                         WEIGHT: [cost.weight_gradient for cost in costs]}
        self._transfers = [cost.transfer for cost in costs]  # to the next stage
        self._transfers[num_devices - 1] = 0.0  # which is on the same device
        unknown = [math.inf] * num_micro_batches
        self._ends = {kind: [list(unknown) for _ in costs] for kind in (FORWARD, BACKWARD)}
        self._free = [0.0] * num_devices
        self._left = [num_micro_batches * sum(each[stage] for each in self._seconds.values() for stage in of_device)
                      for of_device in stages]
        self._kept = [0] * num_devices
        self._pending: list[collections.deque[tuple[float, int, int]]] = [collections.deque() for _ in stages]
        self._peak_activations = self._peak_kept = 0
        self.orders: list[list[Action]] = [[] for _ in stages]

    def _badness(self, shape: _Shape, seconds: float) -> _Badness:
        exceeds = self._peak_activations > shape.most_activations
        return _Badness(exceeds, round(seconds, _NUM_DIGITS), self._peak_kept)

    def run(self, shape: _Shape, best: _Badness = _NOT_POSSIBLE) -> _Badness:
        """Order all actions and return the `_Badness`. Stop with `_NOT_POSSIBLE` if `best` cannot be beaten."""
        positions = [0] * len(self._passes)
        while any(position < len(passes) for position, passes in zip(positions, self._passes)):
            before = list(positions)
            for device, passes in enumerate(self._passes):
                while positions[device] < len(passes) and self._run(device, *passes[positions[device]]):
                    positions[device] += 1
            without_waiting = _ROUNDED_OFF * max(map(operator.add, self._free, self._left))
            if positions == before or self._badness(shape, without_waiting) >= best:
                return _NOT_POSSIBLE
        for device, pending in enumerate(self._pending):
            while pending:
                self._do_pending(device)
        return self._badness(shape, max(self._free))

    def _run(self, device: int, kind: str, stage: int, micro_batch: int) -> Any:
        """Run an F or B and return True, or return False if its inputs are not computed or memory is full."""
        begin, pending = self._arrival(kind, stage, micro_batch), self._pending[device]
        if begin == math.inf:  # an action before it has not run
            return False
        # Ws that fill the wait or free memory run before the F or B.
        while pending and (self._is_full(device, kind) or self._earliest_end(device) <= begin):
            self._do_pending(device)
        if self._is_full(device, kind):
            return False
        end = self._ends[kind][stage][micro_batch] = self._do(device, kind, stage, micro_batch, begin)
        if kind == BACKWARD:
            pending.append((end, stage, micro_batch))
        return True

    def _arrival(self, kind: str, stage: int, micro_batch: int) -> Any:
        """Return the time at which the inputs of an F or B are on its device."""
        ends = self._ends[kind]
        if kind == FORWARD:
            return ends[stage - 1][micro_batch] + self._transfers[stage - 1] if stage else 0.0
        own = self._ends[FORWARD][stage][micro_batch]
        is_last = stage == len(ends) - 1
        return own if is_last else max(own, ends[stage + 1][micro_batch] + self._transfers[stage])

    def _is_full(self, device: int, kind: str) -> bool:
        return kind == FORWARD and self._kept[device] >= self._most_kept

    def _earliest(self, device: int) -> Any:
        """Return the B whose W can begin earliest."""
        pending, free = self._pending[device], self._free[device]  # a B of zero time may end after a later B
        return pending[0] if pending[0][0] <= free else min(pending, key=lambda each: max(free, each[0]))

    def _earliest_end(self, device: int) -> float:
        ready, stage, _ = self._earliest(device)
        return max(self._free[device], ready) + self._seconds[WEIGHT][stage]

    def _do_pending(self, device: int) -> None:
        ready, stage, micro_batch = earliest = self._earliest(device)
        self._pending[device].remove(earliest)
        self._do(device, WEIGHT, stage, micro_batch, ready)

    def _do(self, device: int, kind: str, stage: int, micro_batch: int, begin: float) -> Any:
        """Add an action to the order, and return its end."""
        seconds = self._seconds[kind][stage]
        end = max(self._free[device], begin) + seconds
        if seconds or kind == FORWARD:
            self._free[device] = end
        self._left[device] -= seconds
        self.orders[device].append(Action(kind, stage, micro_batch))
        self._kept[device] += (kind == FORWARD) - (kind == WEIGHT)
        self._peak_kept = max(self._peak_kept, self._kept[device])
        self._peak_activations = max(self._peak_activations, self._kept[device] - len(self._pending[device]))
        return end
