"""The unit of work of a schedule: one pass of one micro-batch through one stage."""

from typing import NamedTuple

FORWARD = 'F'
BACKWARD = 'B'
WEIGHT = 'W'


class Action(NamedTuple):
    """One piece of work of a device, written as stage, kind, micro-batch: '1B2'."""

    # `FORWARD`, `BACKWARD` (gradients of inputs and weights, or only of inputs if the schedule also has the `WEIGHT` of
    # the same stage and micro-batch) or `WEIGHT` (gradients of weights)
    kind: str
    stage: int
    micro_batch: int

    def __str__(self) -> str:
        return f'{self.stage}{self.kind}{self.micro_batch}'


def needs(action: Action, num_stages: int) -> list[Action]:
    """Return the actions whose results an action reads, first the actions of its own stage."""
    kind, stage, micro_batch = action
    if kind == FORWARD:
        return [Action(FORWARD, stage - 1, micro_batch)] if stage > 0 else []
    if kind == WEIGHT:
        return [Action(BACKWARD, stage, micro_batch)]
    own_forward = [Action(FORWARD, stage, micro_batch)]
    return own_forward + ([Action(BACKWARD, stage + 1, micro_batch)] if stage < num_stages - 1 else [])
