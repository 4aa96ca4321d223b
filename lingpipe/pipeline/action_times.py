"""When a running pipeline begins and ends each action, recorded inside its graph."""

import tensorflow as tf

from lingpipe.pipeline import time_stamps
from lingpipe.schedule.step_times import RECOMPUTE
from lingpipe.schedule.timeline import Span


class ActionTimes:
    """Observer of an `executor.Execution` that stamps the begin and the end of every call of a stage.

    A call begins when its arguments are on its device and the call before it there has ended, so that waiting is no work.
    Its results are handed on after its end has been stamped, else who waits for them could begin before::

        previous end ──┬──> begin ──> call ──> end ──┬──> next begin
        arguments ─────┘                │            v
                                        └─────────> results ──> other devices

    Make one for each graph that is traced.

    Args:
        clock_offset: function of a device's name that returns how far its clock is ahead of this machine's, in seconds.
    """

    def __init__(self, clock_offset=lambda device: 0.0):
        self._clock_offset = clock_offset
        self._stamps = time_stamps.TimeStamps()
        self._calls = []

    def around(self, replica, action, lay_out, *arguments):
        """Lays out a call between two stamps; `executor.Execution` calls this with the call's device in scope.

        Args:
            replica: number of the replica.
            action: the `Action` that the call belongs to.
            lay_out: method of `StageProgram` that returns its results and, last, the call operation, or None.
            *arguments: what to call it with.

        Returns:
            List of what `lay_out` returns, held back until the second stamp, which stands in place of the operation.
        """
        begin = self._stamps.when_ready(_tensors_in(arguments))
        with tf.control_dependencies([begin]):
            *results, operation = lay_out(*arguments)
        if operation is None:
            return [*results, None]
        end = self._stamps.when_computed(operation.outputs[0], operation.device)
        kind = RECOMPUTE if lay_out.__name__ == 'recompute' else action.kind
        self._calls.append(((replica, action._replace(kind=kind)), begin, end))
        with tf.control_dependencies([end]):
            results = _map_tensors(lambda tensor: tf.identity(tensor) if tensor.op is operation else tensor, results)
        return [*results, end.op]

    def stamps(self):
        """Returns, in the graph being traced, float64 `[calls, 2]`: begin and end of each call in seconds since 1970."""
        with tf.device('CPU:0'):
            return tf.stack([tf.stack([begin, end]) for _, begin, end in self._calls])

    def spans(self, schedule, stamps):
        """Returns what the stamps of one step say.

        An action of several calls, as a backward pass in segments, lasts from the first to the last. One that has nothing to
        do has no call: it takes no time, after the action before it on its device.

        Args:
            schedule: the `Schedule` that each replica ran.
            stamps: value of `stamps()`.

        Returns:
            Tuple of `Span`s, with recomputations as actions of their own, in the order of their starts.
        """
        spans = [Span(replica * schedule.num_devices + schedule.device_of(action.stage), action, *moments)
                 for replica, times in self._times(stamps).items()
                 for action, moments in _with_actions_without_call(schedule, times).items()]
        return tuple(sorted(spans, key=lambda span: (span.start, span.end, span.device)))

    def _times(self, stamps):
        """Returns for each replica the dictionary from `Action` to its begin and end."""
        times = {}
        for ((replica, action), _, stamp), moments in zip(self._calls, stamps.tolist()):
            begin, end = (moment - self._clock_offset(stamp.device) for moment in moments)
            of_replica = times.setdefault(replica, {})
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
    """Does what `tf.nest.map_structure` does, for dictionaries too whose keys have no order."""
    if tf.is_tensor(nest):
        return function(nest)
    if isinstance(nest, dict):
        return {key: _map_tensors(function, value) for key, value in nest.items()}
    if isinstance(nest, (list, tuple)):
        parts = [_map_tensors(function, part) for part in nest]
        return type(nest)(*parts) if hasattr(nest, '_fields') else type(nest)(parts)
    return nest
