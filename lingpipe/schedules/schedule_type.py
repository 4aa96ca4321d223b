"""The type of every schedule, and the table of the named schedules."""

import collections
import csv
import dataclasses
import functools
import heapq
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self, TypeVar

from lingpipe.schedules import simulation, timeline
from lingpipe.schedules.timeline import BACKWARD, FORWARD, WEIGHT, Action

SCHEDULES: dict[str, Callable[..., 'Schedule']] = {}
NUM_VIRTUAL_STAGES: dict[str, int | None] = {}
_Maker = TypeVar('_Maker', bound=Callable[..., 'Schedule'])


def named(name: str, num_virtual_stages: int | None = 1) -> Callable[[_Maker], _Maker]:
    """Return a decorator that lets users choose a schedule by name.

    A new schedule needs only a new file in this package. The decorated function takes `(num_devices,
    num_micro_batches)`. Its optional parameter `costs` gets a list with a `StageCosts` per stage, or None.

    Args:
        num_virtual_stages: V, the number of stages on each device; None: the function takes V as its third argument.
    """
    def enter(make: _Maker) -> _Maker:
        SCHEDULES[name], NUM_VIRTUAL_STAGES[name] = make, num_virtual_stages
        return make

    return enter


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The ordered actions of each device."""

    name: str  # such as 'gpipe', or the path that it was read from
    num_stages: int  # on all devices together
    num_micro_batches: int
    device_actions: tuple[tuple[Action, ...], ...]  # of each device, in the order in which it runs them

    @property
    def num_devices(self) -> int:
        """K, the number of devices."""
        return len(self.device_actions)

    @functools.cached_property
    def num_virtual_stages(self) -> int:
        """V, the largest number of stages on a device."""
        return max(collections.Counter(self.stage_devices).values())

    @property
    def stage_devices(self) -> tuple[int, ...]:
        """Index of the device of each stage."""
        return tuple(map(self.device_of, range(self.num_stages)))

    @property
    def splits_backward(self) -> bool:
        """Whether any backward pass is split into B and W."""
        return bool(self._weights)

    def is_split(self, action: Action) -> bool:
        """Return whether an action is a W, or a B for which there is a W."""
        return action.kind in (BACKWARD, WEIGHT) and action._replace(kind=WEIGHT) in self._weights

    def device_of(self, stage: int) -> int:
        """Return the index of the device that runs a stage."""
        return self._devices[stage]

    def execution_order(self) -> list[Action]:
        """Return all actions in an order in which the devices can run them.

        Raises:
            ValueError: the devices would wait for each other forever.
        """
        positions = [0] * self.num_devices
        order: dict[Action, None] = {}
        waiting: dict[Action, list[int]] = collections.defaultdict(list)  # devices, by what they wait for
        this_round, next_round = list(range(self.num_devices)), []
        while this_round or next_round:
            if not this_round:
                this_round, next_round = sorted(next_round), []
            device = heapq.heappop(this_round)
            while positions[device] < len(self.device_actions[device]):
                action = self.device_actions[device][positions[device]]
                missing = next((each for each in self.dependencies(action) if each not in order), None)
                if missing is not None:
                    waiting[missing].append(device)
                    break
                order[action] = None
                positions[device] += 1
                for woken in waiting.pop(action, ()):
                    heapq.heappush(this_round if woken > device else next_round, woken)
        if len(order) < sum(map(len, self.device_actions)):
            waits = [f'device {device} waits at position {positions[device]}, '
                     f'{self.device_actions[device][positions[device]]}, for {missing}'
                     for missing, devices in waiting.items() for device in devices]
            raise ValueError(f'Schedule {self.name!r} never ends: {"; ".join(waits)}. Move one of these actions ahead '
                             'on its device, or add it if no device has it.')
        return list(order)

    def dependencies(self, action: Action) -> list[Action]:
        """Return the actions whose results an action reads."""
        kind, stage, micro_batch = action
        if kind == FORWARD:
            return [Action(FORWARD, stage - 1, micro_batch)] if stage > 0 else []
        if kind == WEIGHT:
            return [Action(BACKWARD, stage, micro_batch)]
        own_forward = [Action(FORWARD, stage, micro_batch)]
        return own_forward + ([Action(BACKWARD, stage + 1, micro_batch)] if stage < self.num_stages - 1 else [])

    def backwards(self) -> frozenset[Action]:
        """Return the set of all backward actions."""
        return frozenset(action for action in self._actions() if action.kind == BACKWARD)

    def backwards_after_own_forward(self) -> frozenset[Action]:
        """Return the Bs that run right after their own F. These Bs need no recomputation."""
        return frozenset(  # the activations still exist (torchgpipe calls this 'except_last')
            later
            for actions in self.device_actions
            for earlier, later in itertools.pairwise(actions)
            if later.kind == BACKWARD and earlier == later._replace(kind=FORWARD))

    def peak_memory(self, activations: float = 1.0, weight_gradient_inputs: float = 0.0) -> tuple[float, ...]:
        """Return the peak memory of each device, from the order of its actions.

        Activations are kept from F to the end of B. Tensors that a W needs are kept from B to the end of the W. All
        stages are assumed to be equally large.

        Args:
            activations: size of one micro-batch's activations in all stages of a device (M_B in Zero Bubble, arXiv
                2401.10241, section 2.3).
            weight_gradient_inputs: size of the tensors that Ws of one micro-batch need in all stages of a device (M_W).
        """
        stages_a_device = self.num_stages / self.num_devices  # the mean
        if not self.backwards():
            return (activations / stages_a_device,) * self.num_devices

        def change(action: Action) -> float:
            left = weight_gradient_inputs if self.is_split(action) else 0.0
            return {FORWARD: activations, BACKWARD: left - activations, WEIGHT: -left}[action.kind]

        return tuple(max(itertools.accumulate(map(change, actions))) / stages_a_device
                     for actions in self.device_actions)

    def for_num_micro_batches(self, num_micro_batches: int) -> Self:
        """Return the schedule of only the first `num_micro_batches` micro-batches.

        Raises:
            ValueError: this schedule has fewer micro-batches, or `num_micro_batches` is less than 1.
        """
        if not 1 <= num_micro_batches <= self.num_micro_batches:
            raise ValueError(
                f'Schedule {self.name!r} is for 1 to {self.num_micro_batches} micro-batches, not {num_micro_batches}. '
                f'Make one for {num_micro_batches}.')
        return self._filtered(  # finishes too, without more memory: micro-batches do not depend on each other
            lambda action: action.micro_batch < num_micro_batches, num_micro_batches=num_micro_batches)

    def forward_only(self) -> Self:
        """Return the schedule without its backward actions, for inference."""
        return self._filtered(lambda action: action.kind == FORWARD, name='forward_only')

    def forward_then_backward(self) -> Self:
        """Return a schedule with all Fs, then all Bs in reverse order, for a loss outside the pipeline."""
        forward = self.forward_only()  # the loss reads the outputs of all micro-batches
        return dataclasses.replace(forward, name='gpipe', device_actions=tuple(
            actions + tuple(action._replace(kind=BACKWARD) for action in reversed(actions))
            for actions in forward.device_actions))

    def simulate(
            self, costs: simulation.StageCosts | Sequence[simulation.StageCosts] | None = None) -> timeline.StepTimes:
        """Simulate one step. See `simulation.simulate` for `costs`."""
        return simulation.simulate(self, costs)

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write a CSV file that `from_csv` reads. An existing file is overwritten."""
        with open(path, 'w', encoding='utf-8', newline='') as file:
            csv.writer(file, lineterminator='\n').writerows(self.device_actions)

    def _actions(self) -> Iterator[Action]:
        return itertools.chain.from_iterable(self.device_actions)

    @functools.cached_property
    def _weights(self) -> frozenset[Action]:
        return frozenset(action for action in self._actions() if action.kind == WEIGHT)

    @functools.cached_property
    def _devices(self) -> dict[int, int]:
        return {action.stage: device for device, actions in enumerate(self.device_actions) for action in actions}

    def _filtered(self, keep: Callable[[Action], bool], **changes: Any) -> Self:
        return dataclasses.replace(
            self, device_actions=tuple(tuple(filter(keep, actions)) for actions in self.device_actions), **changes)
