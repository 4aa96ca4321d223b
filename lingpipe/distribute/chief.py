"""What the program that leads a cluster minds while it trains."""

import contextlib

from lingpipe.distribute import messages, watchdog


class Alone:
    """What there is to mind without a cluster: nothing."""

    def minding(self, unused_ask_to_stop):
        return contextlib.nullcontext()

    def watch(self, unused_num_steps=1, kind='step'):
        return contextlib.nullcontext()

    def beat(self):
        pass


class Chief:
    """Minds machines that are about to be taken away, and work that never ends.

    Args:
        config: `ClusterConfig` of the chief.
        needed_job: the job without any of whose tasks training cannot go on, 'worker' or 'ps'.
        step_timeout_seconds: how long a step may take; 0: as long as it wants.
    """

    def __init__(self, config, needed_job, step_timeout_seconds):
        self._config, self._needed_job = config, needed_job
        self._watchdog = watchdog.Watchdog(step_timeout_seconds, config)

    @contextlib.contextmanager
    def minding(self, ask_to_stop):
        """Inside this scope needed servers that get a signal are heard, and work inside `watch` is watched.

        Args:
            ask_to_stop: function of the reason, which is called from another thread.
        """
        messages.listen(self._config, messages.STOP, (self._needed_job,), lambda task: ask_to_stop(f'a signal to {task}'))
        with self._watchdog:
            yield

    def watch(self, num_steps=1, kind='step'):
        """Returns the scope of some steps; see `Watchdog`."""
        return self._watchdog.watch(num_steps, kind)

    def beat(self):
        """Says that the work inside `watch` goes on."""
        self._watchdog.beat()
