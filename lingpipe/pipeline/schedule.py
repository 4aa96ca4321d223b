"""Which action each device runs, and in which order.

Pure Python: a schedule can be read, tested and drawn without TensorFlow.
"""

import dataclasses
import itertools
from typing import NamedTuple

FORWARD = 'F'
BACKWARD = 'B'


class Action(NamedTuple):
    """One piece of work: the forward or backward pass of one micro-batch through one stage."""

    kind: str
    stage: int
    micro_batch: int

    def __str__(self):
        return f'{self.kind}{self.stage},{self.micro_batch}'


@dataclasses.dataclass(frozen=True)
class Schedule:
    """For each device the ordered list of its actions.

    Attributes:
        name: name of the schedule, such as 'gpipe'.
        num_stages: number of stages.
        num_micro_batches: number of micro-batches.
        device_actions: for each device, the tuple of its `Action`s in the order in which it runs them.
    """

    name: str
    num_stages: int
    num_micro_batches: int
    device_actions: tuple

    def execution_order(self):
        """Returns one global order of all actions that keeps each device's order and every data dependency.

        Raises:
            ValueError: when the devices would wait for each other for ever.
        """
        positions = [0] * len(self.device_actions)
        done, order = set(), []
        while len(order) < sum(map(len, self.device_actions)):
            progressed = False
            for device, actions in enumerate(self.device_actions):
                while positions[device] < len(actions) and self._dependencies(actions[positions[device]]) <= done:
                    action = actions[positions[device]]
                    done.add(action)
                    order.append(action)
                    positions[device] += 1
                    progressed = True
            if not progressed:
                raise ValueError(self._describe_deadlock(positions, done))
        return order

    def backwards(self):
        """Returns the set of all backward actions."""
        return frozenset(action for actions in self.device_actions for action in actions if action.kind == BACKWARD)

    def backwards_after_own_forward(self):
        """Returns the backward actions that run right after their own forward action on the same device.

        Nothing need be recomputed there: the activations are still at hand (torchgpipe calls this 'except_last').
        """
        return frozenset(
            later
            for actions in self.device_actions
            for earlier, later in itertools.pairwise(actions)
            if later.kind == BACKWARD and earlier == Action(FORWARD, later.stage, later.micro_batch))

    def _dependencies(self, action):
        kind, stage, micro_batch = action
        if kind == FORWARD:
            return {Action(FORWARD, stage - 1, micro_batch)} if stage > 0 else set()
        needed = {Action(FORWARD, stage, micro_batch)}
        if stage < self.num_stages - 1:
            needed.add(Action(BACKWARD, stage + 1, micro_batch))
        return needed

    def _describe_deadlock(self, positions, done):
        waiting = [
            f'device {device} waits at {actions[position]} for '
            + ', '.join(map(str, sorted(self._dependencies(actions[position]) - done)))
            for device, (actions, position) in enumerate(zip(self.device_actions, positions))
            if position < len(actions)
        ]
        return f'Schedule {self.name!r} never ends: {"; ".join(waiting)}. Reorder the actions of one of these devices.'


def gpipe(num_stages, num_micro_batches):
    """All forward passes, then all backward passes, last micro-batch first (GPipe, arXiv 1811.06965, Figure 2c).

    Three stages, four micro-batches (backward passes drawn as long as forward passes)::

        device 0  F0 F1 F2 F3 .  .  .  .  B3 B2 B1 B0
        device 1  .  F0 F1 F2 F3 .  .  B3 B2 B1 B0 .
        device 2  .  .  F0 F1 F2 F3 B3 B2 B1 B0 .  .

    Args:
        num_stages: K, the number of stages, one on each device.
        num_micro_batches: M, the number of micro-batches.

    Returns:
        A `Schedule`.
    """
    return Schedule('gpipe', num_stages, num_micro_batches, tuple(
        tuple(Action(FORWARD, stage, m) for m in range(num_micro_batches))
        + tuple(Action(BACKWARD, stage, m) for m in reversed(range(num_micro_batches)))
        for stage in range(num_stages)))


def forward_only(num_stages, num_micro_batches):
    """The order of inference: every micro-batch goes through the stages one after the other.

    Args:
        num_stages: K, the number of stages, one on each device.
        num_micro_batches: M, the number of micro-batches.

    Returns:
        A `Schedule` without backward actions.
    """
    return Schedule('forward_only', num_stages, num_micro_batches, tuple(
        tuple(Action(FORWARD, stage, m) for m in range(num_micro_batches)) for stage in range(num_stages)))


SCHEDULES = {'gpipe': gpipe}
