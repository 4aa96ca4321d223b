"""The course of one training step, action by action, with recomputation and the update as work of their own."""

import dataclasses

from lingpipe.schedules.actions import BACKWARD, FORWARD, WEIGHT
from lingpipe.schedules.timeline import Timeline

RECOMPUTE = 'R'
COMPUTE = (FORWARD, BACKWARD, WEIGHT)


@dataclasses.dataclass(frozen=True)
class StepTimes:
    """When each device did what in one step, measured or simulated; all in seconds.

    ::

        device 0  F0 F1 F2 ........... R2 B2 R1 B1 R0 B0 │ U      R: recomputation, an action of kind `RECOMPUTE`
        device 1  .. F0 F1 F2 B2 R1 B1 R0 B0 ........... │ .U     U: update
                  start                        end of actions   end

    Replicas stand beneath each other: with K devices a replica, device d of replica r is device r K + d here. Micro-batches
    are counted in each replica from 0.

    Attributes:
        schedule: `Schedule` that each replica ran.
        spans: tuple of `Span`s in the order of their starts.
        updates: for each device the pair (begin, end) of its update; empty where there was none.
        num_replicas: R.
        input_wait: pair (begin, end) of the time in which all devices waited for the batch, before the step; empty where that
            was not measured.
    """

    schedule: object
    spans: tuple
    updates: tuple = ()
    num_replicas: int = 1
    input_wait: tuple = ()

    @property
    def num_devices(self):
        """How many devices there are, those of all replicas."""
        return self.num_replicas * self.schedule.num_devices

    def replica_of(self, device):
        """Returns the number of the replica that a device belongs to."""
        return device // self.schedule.num_devices

    @property
    def input_seconds(self):
        """Seconds that were waited for the batch; 0 where that was not measured."""
        return self.input_wait[1] - self.input_wait[0] if self.input_wait else 0.0

    @property
    def asked(self):
        """When the batch was asked for, else the start."""
        return self.input_wait[0] if self.input_wait else self.start

    @property
    def start(self):
        """When the first action began."""
        return min(span.start for span in self.spans)

    @property
    def actions_end(self):
        """When the last action of any device ended."""
        return max(span.end for span in self.spans)

    @property
    def end(self):
        """When the last update ended."""
        return max([self.actions_end, *[end for _, end in self.updates]])

    @property
    def seconds(self):
        """From the start of the first action to the end of the last update."""
        return self.end - self.start

    @property
    def durations(self):
        """For each replica, the dictionary from `Action` to seconds."""
        found = [{} for _ in range(self.num_replicas)]
        for span in self.spans:
            found[self.replica_of(span.device)][span.action] = span.end - span.start
        return found

    def busy(self, kinds):
        """Returns the seconds that a device works on actions of some kinds, the mean of all devices."""
        total = sum(span.end - span.start for span in self.spans if span.action.kind in kinds)
        return total / self.num_devices

    @property
    def idle(self):
        """Seconds that a device waits before the last action of all devices has ended, the mean of all devices."""
        return self.actions_end - self.start - self.busy((*COMPUTE, RECOMPUTE))

    @property
    def bubble_fraction(self):
        """Share of the time up to the end of the actions in which a device waits, the mean of all devices."""
        return self.idle / (self.actions_end - self.start)

    @property
    def mean_actions_in_flight(self):
        """How many devices work at once, on average up to the end of the actions."""
        return self.busy((*COMPUTE, RECOMPUTE)) * self.num_devices / (self.actions_end - self.start)

    @property
    def timeline(self):
        """The `Timeline` of the step, in which all that follows the last action counts as update."""
        ends = [end for _, end in self.updates] or [self.actions_end] * self.num_devices
        return Timeline(self.schedule, self.spans, tuple(max(end - self.actions_end, 0.0) for end in ends))
