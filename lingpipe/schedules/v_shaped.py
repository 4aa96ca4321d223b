"""V-shaped schedules: each device has one stage on the way down and one on the way up again.

Device s has stages s and 2 K - 1 - s. So the loss is on device 0, which starts first and can begin the backward pass
first (Zero Bubble, arXiv 2401.10241, section 6). Three devices::

    device 0   stage 0   stage 5  -> loss
    device 1   stage 1   stage 4
    device 2   stage 2   stage 3

Every micro-batch takes the same path as the previous one, six slots later, because each device has two slots each of F,
B and W. So the path of one micro-batch, the building block, gives the order of all (arXiv 2405.15362, section 3). A
block has four legs and three turns. A leg goes through all devices, a turn leads from one leg to the next. Each leg has
a number of slots from one device to the next, and each turn has a number of slots::

    device 0   F           F B           B         legs:   F down, F up, B down, B up
    device 1     F       F     B       B           turns:  F to F on the last device, F to B on the first,
    device 2       F   F         B   B                     B to B on the last

With steeper legs fewer micro-batches are in flight at once, and devices wait longer. Ws fill the remaining slots. The
turns are chosen for the shortest simulated step, by the costs of the stages if they are known.
"""

import collections
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from lingpipe.schedules.actions import BACKWARD, FORWARD, WEIGHT, Action, needs
from lingpipe.schedules.schedule_type import Schedule, named
from lingpipe.schedules.simulation import StageCosts

_NUM_SLOTS = 6  # of a micro-batch on a device
_MOST_ROUNDS = 2  # blocks are compared on at most this many micro-batches per device


class _Shape(NamedTuple):
    """The possible shapes of the block of one schedule.

    Attributes:
        legs: the numbers of slots from a device to the next, to choose among: F down, F up, B down, B up.
        most_activations: the most stages' activations that a device may keep from F to the end of B.
        most_kept: the same up to the end of W, to choose among.
    """

    legs: tuple[tuple[int, int, int, int], ...]
    most_activations: int
    most_kept: tuple[int, ...]


@named('zb_v', num_virtual_stages=2)
def zb_v(num_devices: int, num_micro_batches: int, costs: Sequence[StageCosts] | None = None) -> Schedule:
    """Keeps all devices busy with the activations of K micro-batches, as many as 1F1B keeps (ZB-V).

    Zero Bubble, arXiv 2401.10241, section 6. If F, B and W take equally long and M is 2 K or more, devices wait only
    until the first F reaches the last device, which is (K - 1) / 2 of the time of an F. Two devices, four
    micro-batches; '3F0' is the forward pass of micro-batch 0 through stage 3::

        device 0  0F0-0F1-....3F0-3B0-0F2-3W0-3F1-3B1-0B0-3W1-0F3-0W0-3F2-3B2-0B1-3W2-3F3-3B3-0B2-0W1-0B3-3W3-0W2-0W3-
        device 1  ....1F0-2F0-1F1-2F1-2B0-1B0-2W0-1F2-1W0-2F2-2B1-1B1-2W1-1F3-1W1-2F3-2B2-1B2-2B3-1B3-2W2-1W2-2W3-1W3-

    Args:
        num_devices: K, the number of devices.
        num_micro_batches: M, the number of micro-batches.
        costs: `StageCosts` of each stage, by which the order is chosen; None: all are equal.

    Returns:
        A `Schedule` of 2 K stages that splits the backward pass.
    """
    shape = _Shape(((3, 3, 3, 3), (2, 4, 2, 4)), 2 * num_devices, (2 * num_devices,))
    return _v_shaped('zb_v', num_devices, num_micro_batches, shape, costs)


@named('v_half', num_virtual_stages=2)
def v_half(num_devices: int, num_micro_batches: int, costs: Sequence[StageCosts] | None = None) -> Schedule:
    """Keeps about half of the activations of 1F1B, and waits about half as long (V-Half).

    Every device keeps the activations of (K + 2) // 2 micro-batches from F to B, and those of at most two more that
    wait for their W (arXiv 2405.15362, section 3.2).

    Args:
        num_devices: K, the number of devices.
        num_micro_batches: M, the number of micro-batches.
        costs: `StageCosts` of each stage, by which the order is chosen; None: all are equal.

    Returns:
        A `Schedule` of 2 K stages that splits the backward pass.
    """
    most = 2 * ((num_devices + 2) // 2)
    shape = _Shape(((1, 2, 1, 2), (1, 2, 2, 1)), most, (most, most + 2, most + 4))
    return _v_shaped('v_half', num_devices, num_micro_batches, shape, costs)


def _v_shaped(name, num_devices, num_micro_batches, shape, costs):
    costs = tuple(costs or [StageCosts().scaled(0.5)] * (2 * num_devices))
    block = _best_block(num_devices, min(num_micro_batches, _MOST_ROUNDS * num_devices), shape, costs)
    orders = _filled(*block, num_micro_batches, costs).orders
    return Schedule(name, 2 * num_devices, num_micro_batches, tuple(map(tuple, orders)))


@functools.lru_cache(maxsize=256)
def _best_block(num_devices, num_micro_batches, shape, costs):
    """Returns the block with the shortest step (among equals, the one that keeps least), and the most to keep."""
    def badness(block):
        filling = _filled(*block, num_micro_batches, costs)
        if filling is None:
            return 2, 0.0, 0
        exceeds = filling.peak_activations > shape.most_activations
        return int(exceeds), round(filling.seconds, 9), filling.peak_kept

    return min(itertools.product(_blocks(num_devices, shape), shape.most_kept), key=badness)


def _blocks(num_devices: int, shape: _Shape) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Yields blocks: for each leg the slots of all devices, such that no two collide six slots later.

    Places repeat after six devices, as slots do, so checking six devices is enough.
    """
    devices = range(num_devices)
    for legs in shape.legs:
        for turns in itertools.product(range(1, _NUM_SLOTS + 1), repeat=3):
            starts: list[list[int]] = []
            for leg, (step, turn) in enumerate(zip(legs, (0, *turns))):
                way = devices[::-1] if leg % 2 else devices
                before = starts[-1][way[0]] if starts else 0
                starts.append([before + turn + step * abs(device - way[0]) for device in devices])
            if all(len({slots[device] % _NUM_SLOTS for slots in starts}) == len(legs)
                   for device in devices[:_NUM_SLOTS]):
                yield tuple(map(tuple, starts))


def _filled(starts, most_kept, num_micro_batches, costs):
    """Returns the `_Filling` of all devices, or None if one would have to keep too much."""
    passes = [
        [action for _, action in sorted(
            (slots[device] + _NUM_SLOTS * micro_batch, Action(kind, stage, micro_batch))
            for slots, kind, stage in zip(starts, (FORWARD, FORWARD, BACKWARD, BACKWARD), (device, up, up, device))
            for micro_batch in range(num_micro_batches))]
        for device, up in zip(range(len(starts[0])), reversed(range(len(costs))))]
    filling = _Filling(passes, most_kept, costs)
    return filling if filling.run() else None


class _Filling:
    """Puts Ws where a device would wait, and where it could not keep more.

    Args:
        passes: for each device, the list of its F and B in order.
        most_kept: the most Fs without a W that a device may have.
        costs: `StageCosts` of each stage.

    Attributes:
        orders: for each device, the list of its actions in order.
        peak_activations: the most Fs without a B on a device.
        peak_kept: the most Fs without a W on a device.
    """

    def __init__(self, passes: list[list[Action]], most_kept: int, costs: Sequence[StageCosts]) -> None:
        self._passes, self._most_kept, self._costs = passes, most_kept, costs
        self._ends: dict[Action, float] = {}
        self._free, self._kept = [0.0] * len(passes), [0] * len(passes)
        self._pending: list[collections.deque[Action]] = [collections.deque() for _ in passes]
        self.orders: list[list[Action]] = [[] for _ in passes]
        self.peak_activations = self.peak_kept = 0

    @property
    def seconds(self) -> float:
        """Time from the first action to the end of the last."""
        return max(self._free)

    def run(self) -> bool:
        """Orders all actions, and returns whether that is possible."""
        positions = [0] * len(self._passes)
        while any(position < len(passes) for position, passes in zip(positions, self._passes)):
            before = list(positions)
            for device, passes in enumerate(self._passes):
                while positions[device] < len(passes) and self._run(device, passes[positions[device]]):
                    positions[device] += 1
            if positions == before:
                return False
        for device, pending in enumerate(self._pending):
            while pending:
                self._do_pending(device)
        return True

    def _run(self, device, action):
        """Runs an F or B if its data have arrived and, with what is pending, it can be kept."""
        arrivals = [self._arrival(needed, action) for needed in needs(action, len(self._costs))]
        if None in arrivals:
            return False
        begin, pending = max([0.0, *arrivals]), self._pending[device]
        while pending and (self._is_full(device, action) or self._earliest_end(device) <= begin):
            self._do_pending(device)
        if self._is_full(device, action):
            return False
        self._do(device, action, begin)
        if action.kind == BACKWARD:
            pending.append(action._replace(kind=WEIGHT))
        return True

    def _arrival(self, needed, action):
        if needed not in self._ends:
            return None
        stays = needed.stage == action.stage or needed.stage + action.stage == len(self._costs) - 1
        return self._ends[needed] + (0.0 if stays else self._costs[min(needed.stage, action.stage)].transfer)

    def _is_full(self, device, action):
        return action.kind == FORWARD and self._kept[device] >= self._most_kept

    def _earliest(self, device):
        """Returns the W that can begin first; if a B takes no time, the device may be here before its data."""
        return min(self._pending[device], key=lambda action: max(self._free[device], self._ready(action)))

    def _earliest_end(self, device):
        action = self._earliest(device)
        return max(self._free[device], self._ready(action)) + self._duration(action)

    def _ready(self, action):
        return self._ends[action._replace(kind=BACKWARD)]

    def _do_pending(self, device):
        action = self._earliest(device)
        self._pending[device].remove(action)
        self._do(device, action, self._ready(action))

    def _do(self, device, action, begin):
        seconds = self._duration(action)
        self._ends[action] = max(self._free[device], begin) + seconds
        if seconds or action.kind == FORWARD:
            self._free[device] = self._ends[action]
        self.orders[device].append(action)
        self._kept[device] += {FORWARD: 1, BACKWARD: 0, WEIGHT: -1}[action.kind]
        self.peak_kept = max(self.peak_kept, self._kept[device])
        self.peak_activations = max(self.peak_activations, self._kept[device] - len(self._pending[device]))

    def _duration(self, action):
        cost = self._costs[action.stage]
        return {FORWARD: cost.forward, BACKWARD: cost.recompute + cost.backward, WEIGHT: cost.weight_gradient}[
            action.kind]
