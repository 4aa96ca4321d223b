"""Times of a schedule's actions, simulated or measured, and a drawing of these times."""

import dataclasses
from collections.abc import Collection
from typing import Any, NamedTuple

FORWARD = 'F'
BACKWARD = 'B'
WEIGHT = 'W'
RECOMPUTE = 'R'
COMPUTE = (FORWARD, BACKWARD, WEIGHT)
_MOST_COLUMNS = 160


class Action(NamedTuple):
    """Work of a device on one micro-batch in one stage. '1B2' is the backward pass of micro-batch 2 in stage 1."""

    # `FORWARD`, `BACKWARD` (gradients of inputs and weights, or only of inputs if the schedule also has the `WEIGHT` of
    # the same stage and micro-batch) or `WEIGHT` (gradients of weights)
    kind: str
    stage: int
    micro_batch: int

    def __str__(self) -> str:
        return f'{self.stage}{self.kind}{self.micro_batch}'


class Span(NamedTuple):
    """Start and end of one action on its device."""

    device: int  # devices of several replicas are numbered one replica after the other
    action: Action
    start: float
    end: float


@dataclasses.dataclass(frozen=True)
class StepTimes:
    """The simulated or measured times of one step.

    Measured times are in seconds, simulated times in the unit of `StageCosts`. Devices are numbered replica by replica.

    ::

        device 0  F0 F1 F2 ........... R2 B2 R1 B1 R0 B0 │ U      R: recomputation, an action of kind `RECOMPUTE`
        device 1  .. F0 F1 F2 B2 R1 B1 R0 B0 ........... │ .U     U: update
                  start                        end of actions   end
    """

    schedule: Any  # `Schedule` that each replica ran; micro-batches are counted from 0 in each
    spans: tuple[Span, ...]  # in the order of their starts
    updates: tuple[tuple[float, float], ...] = ()  # for each device (begin, end) of its update; empty: there was none
    num_replicas: int = 1
    # (begin, end) of the time in which all devices waited for the batch, before the step; empty: not measured
    input_wait: tuple[float, float] | tuple[()] = ()

    @property
    def num_devices(self) -> int:
        """Number of devices across all replicas."""
        return self.num_replicas * self.schedule.num_devices

    def replica_of(self, device: int) -> int:
        """Return the number of the replica that a device belongs to."""
        return device // self.schedule.num_devices

    @property
    def input_seconds(self) -> float:
        """Seconds from the request for the batch to its arrival; 0 if not measured."""
        return self.input_wait[1] - self.input_wait[0] if self.input_wait else 0.0

    @property
    def asked(self) -> float:
        """Time at which the batch was requested, or `start` if this time was not measured."""
        return self.input_wait[0] if self.input_wait else self.start

    @property
    def start(self) -> float:
        """Start of the first action."""
        return min(span.start for span in self.spans)

    @property
    def actions_end(self) -> float:
        """End of the last action of any device."""
        return max(span.end for span in self.spans)

    @property
    def end(self) -> float:
        """Time at which all actions and updates have ended."""
        return max([self.actions_end, *[end for _, end in self.updates]])

    @property
    def seconds(self) -> float:
        """Time from `start` to `end`."""
        return self.end - self.start

    @property
    def durations(self) -> list[dict[Action, float]]:
        """Duration of each `Action`, in one dictionary per replica."""
        found: list[dict[Action, float]] = [{} for _ in range(self.num_replicas)]
        for span in self.spans:
            found[self.replica_of(span.device)][span.action] = span.end - span.start
        return found

    def busy(self, kinds: Collection[str]) -> float:
        """Return the mean time that a device spends on actions of these `kinds`."""
        total = sum(span.end - span.start for span in self.spans if span.action.kind in kinds)
        return total / self.num_devices

    @property
    def idle(self) -> float:
        """Mean time that a device is idle between `start` and `actions_end`."""
        return max(self.actions_end - self.start - self.busy((*COMPUTE, RECOMPUTE)), 0.0)

    @property
    def bubble_fraction(self) -> float:
        """`idle`, as a share of the time from `start` to `actions_end`."""
        return self.idle / (self.actions_end - self.start) if self.idle else 0.0

    def draw(self, num_columns: int | None = None) -> str:
        """Draw one row per device. The name of an action starts in the column where the action starts.

        '-' fills the rest of an action, '.' marks idle time, and 'U' marks an update. A name includes the
        stage if a device has several stages. A name that does not fit is shortened to the kind of the action.

        Args:
            num_columns: number of characters for the whole step; None: as many as the names need, at most 160.
        """
        columns = num_columns or self._natural_num_columns()
        width = len(str(self.num_devices - 1))
        rows = [self._draw_device(device, columns) for device in range(self.num_devices)]
        return '\n'.join(f'device {device:<{width}}  {row}' for device, row in enumerate(rows))

    def _natural_num_columns(self) -> int:
        gap = int(self.schedule.num_virtual_stages > 1)
        scales = [(len(self._label(span.action)) + gap) / (span.end - span.start)
                  for span in self.spans if span.end > span.start]
        return min(round(max(scales) * self.seconds), _MOST_COLUMNS) if scales else _MOST_COLUMNS

    def _label(self, action: Action) -> str:
        return str(action) if self.schedule.num_virtual_stages > 1 else f'{action.kind}{action.micro_batch}'

    def _draw_device(self, device: int, num_columns: int) -> str:
        blocks = [(self._label(span.action), span.action.kind, span.start, span.end)
                  for span in self.spans if span.device == device]
        blocks += [('U', 'U', *self.updates[device])] if self.updates else []
        row, columns_per_time = ['.'] * num_columns, num_columns / (self.seconds or 1.0)
        for label, kind, start, end in blocks:
            first, last = (round((moment - self.start) * columns_per_time) for moment in (start, end))
            room = last - first
            row[first:last] = (label if len(label) <= room else kind[:room]).ljust(room, '-')
        return ''.join(row)
