"""Memory and open files of the processes of a cluster, sampled while they train."""

import os
import pathlib
import statistics
import threading

_PAGE = os.sysconf('SC_PAGE_SIZE')
_QUANTILES = 10  # processes that have just restarted need less: the upper tenth of the samples counts


class ProcessUse:
    """Samples each task's processes in a thread.

    Args:
        training: the `StruckTraining`.
        seconds: time between two samples.

    Attributes:
        samples: list of dicts of (bytes of memory, number of open files) by task.
    """

    def __init__(self, training, seconds):
        self._training, self._seconds = training, seconds
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self.samples = []

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *unused):
        self._end.set()
        self._thread.join()

    def growth(self, begin, length):
        """Returns how much memory and open files of any task grew, as two numbers such as 0.05.

        Args:
            begin: number of the first sample that counts.
            length: number of samples that are compared with as many at the end.
        """
        first, last = self.samples[begin:begin + length], self.samples[-length:]
        return [max(_most(last, task, kind) / _most(first, task, kind) - 1 for task in self._training.tasks)
                for kind in (0, 1)]

    def _sample(self):
        while not self._end.wait(self._seconds):
            self.samples.append({task: use for task in self._training.tasks if (use := self._use(task))})

    def _use(self, task):
        """Returns what its supervisor and the process that works need, or None while one of them is missing."""
        try:
            processes = [self._training.supervisor(task), self._training.child(task)]
            if None in processes:
                return None
            return tuple(sum(use) for use in zip(*map(_use_of, processes)))
        except OSError:  # one has just ended
            return None


def _use_of(process):
    folder = pathlib.Path(f'/proc/{process}')
    resident = int((folder / 'statm').read_text().split()[1])
    return resident * _PAGE, len(os.listdir(folder / 'fd'))


def _most(samples, task, kind):
    return statistics.quantiles([sample[task][kind] for sample in samples if task in sample], n=_QUANTILES)[-1]
