"""A log directory as the fuzzer knows it: which checkpoints must be there, and what they must hold."""

import json
import pathlib
import re

from lingpipe.training import checkpoints
from tests.fuzz_runs import values

_LEFT_BEHIND = re.compile(r'.*_temp|unfinished|checkpoint\.tmp.*|.*\.new')
_NOT_CONTENTS = re.compile(r'lock|probe_\d+')  # a process that is killed at once leaves the latter
_TOLERANCE = 1e-3  # other orders of sums, amplified by a few steps
_TOLERANCE_OF_LOSS = 2e-4  # as many digits as are printed


class Broken(AssertionError):
    """An invariant does not hold; the message says which."""


def require(holds, *sentence):
    """Raise `Broken` unless an invariant holds."""
    if not holds:
        raise Broken(': '.join(map(str, sentence)))


class Folder:
    """The log directory of a run."""

    def __init__(self, path, references):
        self.path, self.config, self.damaged = pathlib.Path(path), None, set()
        self._references, self._segments, self._seen = references, [], {0: 0}

    def complete(self):
        """Return the paths of the complete checkpoints, the newest first, that nobody has damaged."""
        return [path for path in self._listed() if pathlib.Path(path).name not in self.damaged]

    def _listed(self):
        return checkpoints.complete(str(self.path / 'train'))

    def newest_step(self):
        """Return the step of the newest complete checkpoint, 0 if there is none."""
        return max(map(checkpoints.step_of, self.complete()), default=0)

    def begin(self, config):
        """Note that training begins at the newest checkpoint, with a configuration."""
        step, newest = self.newest_step(), next(iter(self.complete()), None)
        known = self._reference(step + 1)
        self.config = config
        if known and known.config.numbers == config.numbers and self._segments[-1][0] <= step:
            return
        self._segments = [segment for segment in self._segments if segment[0] < step]
        close = known if known and config.is_close_to(known.config) else None
        self._segments.append((step, self._references.of(config, newest), close))
        for later in range(step, 2 * step + 100):
            self._seen[later] = self._seen.get(step, 0) + (later - step) * config.batch_size

    def examples_seen(self, step):
        """Return how many examples the run had seen at a step."""
        return self._seen.get(step, 0)

    def forget(self):
        """Note that the checkpoints of training were deleted."""
        self._segments, self._seen, self.damaged = [], {0: 0}, set()

    def _reference(self, step):
        """Return the `Reference` of a step."""
        return next((reference for first, reference, _ in reversed(self._segments) if first < step), None)

    def expected(self, step):
        """Return what a checkpoint of a step must hold, or None where nothing is known."""
        reference = self._reference(step)
        return reference and reference.values(step)

    def check(self):
        """Check that each complete checkpoint can be read and is that of this run, and that the best one is."""
        for path in self._listed():
            name, step = pathlib.Path(path).name, checkpoints.step_of(path)
            try:
                found = values.stored(path)
            except Exception as error:  # noqa: BLE001  what TensorFlow raises
                require(name in self.damaged, 'a listed checkpoint cannot be read', path, error)
                continue
            self.damaged.discard(name)
            wanted = self.expected(step)
            require(wanted is not None, 'a checkpoint is of no run here', path)
            differing = values.differing(found, wanted)
            require(not differing, 'a checkpoint differs from that of an undisturbed run', path, differing[:3])
            self._check_closeness(step, found)
        self._check_best()

    def _check_closeness(self, step, found):
        close = next((close for first, _, close in reversed(self._segments) if first < step), None)
        if close:
            differing = values.differing(found, close.values(step), _TOLERANCE)
            require(not differing, 'another cut gives other numbers', step, differing[:3])

    def _check_best(self):
        claimed = self.best()
        if claimed is None:
            return
        path = self.path / 'best' / f'ckpt-{claimed["step"]}'
        listed = [pathlib.Path(each).name for each in checkpoints.complete(str(path.parent))]
        require(path.name in listed, 'best.json names a step that best/ does not hold', claimed, listed)
        found = values.loss(values.stored(path))
        require(abs(found - claimed['value']) < _TOLERANCE_OF_LOSS * max(1, found),
                'best/ does not hold the value that best.json claims', claimed, found)

    def best(self):
        """Return what best.json says, or None."""
        file = self.path / 'best' / 'best.json'
        return json.loads(file.read_text()) if file.exists() else None

    def check_losses(self, printed):
        """Check the losses of evaluations that training has printed, against the undisturbed run."""
        for step, loss in re.findall(r'^step (\d+), Test: loss ([\d.]+)$', printed, re.MULTILINE):
            if self.expected(int(step)):
                self.check_loss(self.expected(int(step)), float(loss), step)

    def check_loss(self, found, printed, what):
        """Check a printed loss against the values that it is the loss of."""
        wanted = values.loss(found)
        require(abs(wanted - printed) < _TOLERANCE_OF_LOSS * max(1, wanted), 'an evaluation prints another loss', what,
                f'{printed} instead of {wanted:.4f}')

    def left_behind(self):
        """Return the names of files that belong to nothing, where a run has ended in peace."""
        return [str(path) for path in self.path.rglob('*') if _LEFT_BEHIND.fullmatch(path.name)]

    def contents(self, *without):
        """Return {path: bytes} of all files but the lock, the trial of writing, and those below some folders."""
        return {path: path.read_bytes() for path in sorted(self.path.rglob('*')) if path.is_file()
                and not _NOT_CONTENTS.fullmatch(path.name) and path.relative_to(self.path).parts[0] not in without}
