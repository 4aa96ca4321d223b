"""Which workers of a pipeline over hosts take part: one that does not answer for too long is left out until it is back.

::

    a step fails ─> ask all workers ─> wait for the silent ones ─┬─> all answer: training continues with all
                                                                 └─> too long: training continues without them

    a thread asks the workers that are left out ─> one answers ─> next checkpoint ─> training continues with it too
"""

import functools
import threading
import time

from lingpipe.cluster import answers, cluster_config, ports
from lingpipe.training import logdir

_SECONDS_BETWEEN_LOOKS = 1.


class Roster:
    """The workers of a pipeline over hosts, some of which may be left out.

    The log directory has a list of the workers that are left out, so that a restarted chief does not wait for them.

    Args:
        config: `ClusterConfig` of the chief, with all workers.
        replace_after_seconds: how long training waits for a lost worker.
        files: `LogDir` of the run.

    Attributes:
        config: `ClusterConfig` of the chief, without the workers that are left out.
        num_devices: number of the devices of all workers; None before all have connected.
    """

    def __init__(self, config: cluster_config.ClusterConfig, replace_after_seconds: float,
                 files: logdir.LogDir) -> None:
        self._all, self._patience, self._files = config, replace_after_seconds, files
        left_out, self.num_devices = files.read_left_out() or ([], None)
        self.config = config._replace(left_out=frozenset(config.tasks('worker')).intersection(left_out))
        self._is_back = threading.Event()
        self._has_gathered = False

    def gather(self) -> None:
        """Waits for workers, and leaves out those that do not answer in time.

        A training run begins with all workers. Workers that were left out before are asked, but not waited for.

        Raises:
            ConnectionError: no worker answers, or one is missing at the beginning of the training run.
        """
        silent = answers.silent_tasks(self._all)
        if not self._is_enough(silent, 0):
            self._tell_wait(silent)
            silent = answers.await_workers(
                self._all, functools.partial(answers.silent_tasks, self._all), self._is_enough)
        self._tell_change(silent)
        self._has_gathered = True
        self.config = self._all._replace(left_out=frozenset(silent))
        self._watch_those_left_out()

    def has_connected(self, num_devices: int) -> None:
        """Records which workers take part, and the number of their devices, after the chief has connected."""
        if not self.config.left_out:
            self.num_devices = num_devices
        self._files.write_left_out(sorted(self.config.left_out), self.num_devices)

    def is_worker_back(self) -> bool:
        """Returns whether a worker that is left out answers again."""
        return self._is_back.is_set()

    def _is_enough(self, silent, seconds):
        """Returns whether training can continue without the silent workers."""
        awaited = set(silent) - self.config.left_out
        is_over = self.num_devices is not None and seconds >= self._patience
        return len(silent) < self._all.num_workers and (not awaited or is_over)

    def _tell_wait(self, silent):
        is_patience = self.num_devices is not None and len(silent) < self._all.num_workers
        limit = (f' for {self._patience:g} s (--replace_after_seconds)' if is_patience else
                 f', for {ports.SECONDS_TO_WAIT} s at most')
        _say(f'No answer from {self._all.in_words(silent)}: waiting{limit}.')

    def _tell_change(self, silent):
        lost, returned = set(silent) - self.config.left_out, self.config.left_out.difference(silent)
        absent = self.config.left_out.intersection(silent)
        remaining = [name for name in self._all.tasks('worker') if name not in silent]
        if lost:
            _say(f'{_listed(self._all, lost)} not answered for {self._patience:g} s (--replace_after_seconds): '
                 f'training continues over {", ".join(remaining)}. A worker that answers again takes part from the '
                 'next checkpoint on.')
        if absent and not self._has_gathered:
            _say(f'No answer from {self._all.in_words(sorted(absent))}, left out before: training is over '
                 f'{", ".join(remaining)}.')
        if returned:
            _say(f'{self._all.in_words(sorted(returned))} answers again: training continues over '
                 f'{", ".join(remaining)}.')

    def _watch_those_left_out(self):
        self._is_back = threading.Event()
        if self.config.left_out:
            threading.Thread(target=self._watch, args=(self.config.left_out, self._is_back), name='roster',
                             daemon=True).start()

    def _watch(self, left_out, is_back):
        """Waits until one answers; the next checkpoint then decides which workers take part."""
        others = frozenset(self._all.tasks('worker')) - left_out
        while len(answers.silent_tasks(self._all._replace(left_out=others))) == len(left_out):
            time.sleep(_SECONDS_BETWEEN_LOOKS)
            if is_back is not self._is_back:
                return  # the list has changed, and has a thread of its own
        is_back.set()


def _listed(config, names):
    return f'{config.in_words(sorted(names))} {"has" if len(names) == 1 else "have"}'


def _say(sentence):
    print(sentence, flush=True)
