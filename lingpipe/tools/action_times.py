"""Start and end times of a pipeline's actions, from timestamps in the graph."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from lingpipe.devices import device_kinds
from lingpipe.schedules import schedule_type
from lingpipe.schedules.timeline import RECOMPUTE, Action, Span
from lingpipe.stages.stage_program import ActionResult

_NUM_TRIES = 20


class TimeStamps:
    """A builder of operations that read the clock."""

    def __init__(self) -> None:
        self._functions = {}

    def when_ready(self, tensors: Any) -> tf.Tensor:
        """Build a timestamp, in seconds since 1970, on the current device. The timestamp waits for all `tensors`."""
        dtypes = tuple(tensor.dtype for tensor in tensors)
        if dtypes not in self._functions:
            self._functions[dtypes] = _stamp_function(dtypes)
        # `tf.timestamp` is stateful: without this stateless call, devices would work one after the other.
        stamp, = tf.raw_ops.PartitionedCall(args=tensors, Tout=[tf.float64], f=self._functions[dtypes])
        stamp.set_shape([])
        return stamp

    def when_computed(self, tensor: tf.Tensor, device: str) -> tf.Tensor:
        """Build a timestamp that waits until a device has computed a tensor."""
        # TensorFlow treats an operation on an accelerator as done when it is queued. So the host waits until it has
        # received a value of the tensor, and then reads the clock.
        with tf.device(device):
            element = tf.reshape(tensor, [-1])[:1]
        is_cpu = device_kinds.kind_of(device) == 'CPU'
        with tf.device(device if is_cpu else device_kinds.host_of(device)):
            return self.when_ready([element])


def _stamp_function(dtypes):
    with tf.init_scope():
        function = tf.function(
            lambda *unused: tf.timestamp(), autograph=False, experimental_attributes={'_noinline': True})
        return function.get_concrete_function(*[tf.TensorSpec(None, dtype) for dtype in dtypes])


class Clocks:
    """The differences between the clocks of other machines and the local clock.

    Each machine is asked for the time repeatedly, and the fastest answer is used. The answered time is assumed to lie
    midway between question and answer, as in NTP (RFC 5905, section 8)::

        here    asked ────────────┬──────────── answered        offset = time there - (asked + answered) / 2,
                                  │                             wrong by at most (answered - asked) / 2
        there                time there
    """

    def __init__(self) -> None:
        self._offsets = {}

    def offset(self, device: str) -> float:
        """Return how many seconds the clock of a device is ahead of the local clock."""
        if tf.DeviceSpec.from_string(device).job in (None, 'localhost', 'chief'):
            return 0.0
        host = device_kinds.host_of(device)
        if host not in self._offsets:
            self._offsets[host] = min(self._try(host) for _ in range(_NUM_TRIES))[1]
        return self._offsets[host]

    def _try(self, host):
        asked = time.time()
        told = _time_of(host)
        answered = time.time()
        return answered - asked, told - (asked + answered) / 2


def _time_of(host):
    with tf.device(host):
        return float(tf.timestamp())


class ActionTimes:
    """An observer that timestamps the start and the end of every stage call.

    A call begins when the arguments and the device are ready. Other calls get the results after the end::

        previous end ──┬──> begin ──> call ──> end ──┬──> next begin
        arguments ─────┘                │            v
                                        └─────────> results ──> other devices

    Each traced graph needs a separate `ActionTimes`.

    Args:
        clock_offset: function of a device's name, such as `Clocks.offset`.
    """

    def __init__(self, clock_offset: Callable = lambda device: 0.0) -> None:
        self._clock_offset = clock_offset
        self._stamps = TimeStamps()
        self._calls = []

    @contextlib.contextmanager
    def observing(self, body: Any) -> Iterator[None]:
        """Observe what a `GPipeLayer` builds inside this scope."""
        body.grid.observer = self
        try:
            yield
        finally:
            body.grid.observer = None

    def around(self, replica: int, action: Action, build: Callable[..., ActionResult],
               *arguments: Any) -> ActionResult:
        """Build a stage call, and timestamps before and after it. See `observer` in `executor.PassOptions`."""
        begin = self._stamps.when_ready(_tensors_in(arguments))
        with tf.control_dependencies([begin]):
            done = build(*arguments)
        operation = done.operation
        if operation is None:
            return done
        end = self._stamps.when_computed(operation.outputs[0], operation.device)
        kind = RECOMPUTE if build.__name__ == 'recompute' else action.kind
        self._calls.append(((replica, action._replace(kind=kind)), begin, end))
        with tf.control_dependencies([end]):  # else other calls could begin too early
            late = _map_tensors(lambda tensor: tf.identity(tensor) if tensor.op is operation else tensor, done)
        return late._replace(operation=end.op)

    def stamps(self) -> tf.Tensor:
        """Build a float64 tensor `[calls, 2]` of start and end times, in seconds since 1970."""
        with tf.device('CPU:0'):
            return tf.stack([tf.stack([begin, end]) for _, begin, end in self._calls])

    def spans(self, schedule: schedule_type.Schedule, stamps: Any) -> tuple:
        """Return a `Span` for each action of a step, sorted by start.

        Recomputations are separate actions. An action without a call takes no time.

        Args:
            stamps: array with the values of `self.stamps()`.
        """
        spans = [Span(replica * schedule.num_devices + schedule.device_of(action.stage), action, *moments)
                 for replica, times in self._times(stamps).items()
                 for action, moments in _with_actions_without_call(schedule, times).items()]
        return tuple(sorted(spans, key=lambda span: (span.start, span.end, span.device)))

    def _times(self, stamps):
        """Return a dictionary from replica to {action: (begin, end)}."""
        times = {}
        for ((replica, action), _, stamp), moments in zip(self._calls, stamps.tolist()):
            begin, end = (moment - self._clock_offset(stamp.device) for moment in moments)
            of_replica = times.setdefault(replica, {})
            # An action of several calls, such as a backward pass in segments, begins with the first call.
            first, _ = of_replica.get(action, (begin, end))
            of_replica[action] = first, end
        return times


def _with_actions_without_call(schedule, times):
    times, first = dict(times), min(begin for begin, _ in times.values())
    for actions in schedule.device_actions:
        moment = first
        for action in actions:
            _, moment = times.get(action._replace(kind=RECOMPUTE), (moment, moment))
            _, moment = times.setdefault(action, (moment, moment))
    return times


def _tensors_in(nest):
    found = []
    _map_tensors(found.append, nest)
    return found


def _map_tensors(function, nest):
    """Apply a function to each tensor of a nest."""
    if tf.is_tensor(nest):
        return function(nest)
    if isinstance(nest, dict):  # unlike in `tf.nest`, keys need not be sortable
        return {key: _map_tensors(function, value) for key, value in nest.items()}
    if isinstance(nest, (list, tuple)):
        parts = [_map_tensors(function, part) for part in nest]
        return type(nest)(*parts) if hasattr(nest, '_fields') else type(nest)(parts)
    return nest
