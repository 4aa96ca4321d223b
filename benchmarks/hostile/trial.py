"""Reading one hostile folder in this process: what came of it, and what it did that it must not."""

import contextlib
import dataclasses
import gc
import logging as python_logging
import os
import pathlib
import random
import resource
import shutil
import signal
import sys
import tempfile
import warnings

from absl import logging

from benchmarks.hostile import mutations, readers

READ, REFUSED, FAULT = 'read', 'refused', 'fault'
SECONDS = 10  # of work, and of waiting (see `waits.py`)
_BYTES = 4 * 2**30
_LONGEST_SENTENCE = 2000
_OURS = f'{os.sep}lingpipe{os.sep}'
_RUNNING = {
    'os.system', 'os.exec', 'os.posix_spawn', 'os.spawn', 'os.startfile', 'subprocess.Popen', 'pty.spawn', 'pickle.find_class',
    'ctypes.dlopen', 'socket.connect', 'socket.bind', 'webbrowser.open', 'urllib.Request', 'code.__new__'}
_WRITING = {
    'os.remove', 'os.rename', 'os.rmdir', 'os.mkdir', 'os.link', 'os.symlink', 'os.truncate', 'os.chmod', 'shutil.rmtree',
    'shutil.move', 'shutil.copyfile', 'tempfile.mkstemp', 'tempfile.mkdtemp'}
_watched: list['_Watch'] = []


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came of a trial: 'read', 'refused' with the sentence, or 'fault' with what is wrong."""

    kind: str
    reason: str


class Folders:
    """Where trials of one reader happen.

    ::

        inside/      what is read; it may be written to
        outside/     precious: must stay as it is; target: must not come to be
        stranger/    a module that makes the target when it is imported
        good/        the good files of the reader
    """

    def __init__(self, reader: readers.Reader) -> None:
        self._whole = tempfile.TemporaryDirectory()
        root = pathlib.Path(os.path.realpath(self._whole.name))
        self.inside, self.outside, self._good = root / 'a' / 'inside', root / 'outside', root / 'good'
        self.target = self.outside / 'target'
        for folder in (self.inside, self.outside, self._good, root / 'stranger'):
            folder.mkdir(parents=True)
        (root / 'stranger/stranger.py').write_text(
            f'import pathlib\npathlib.Path({str(self.target)!r}).touch()\ndef touch(*_, **__): pass\nclass Touch: pass\n')
        sys.path.insert(0, str(root / 'stranger'))
        reader.write(str(self._good))

    def renew(self) -> None:
        """Puts good files inside, and what is precious outside."""
        for folder in (self.inside, self.outside):
            shutil.rmtree(folder)
        shutil.copytree(self._good, self.inside)
        self.outside.mkdir()
        (self.outside / 'precious').write_text('precious')

    def harm(self) -> str:
        """Returns what happened outside, '' if nothing did."""
        found = {path.name: path.read_text(errors='replace') for path in self.outside.iterdir() if path.is_file()}
        return '' if found == {'precious': 'precious'} and 'stranger' not in sys.modules else f'outside there is {found}'

    def close(self) -> None:
        """Removes all."""
        self._whole.cleanup()


class _Watch:
    """Notes the audit events of Python that no reader may cause."""

    def __init__(self, inside):
        self._inside, self.faults = str(inside), []

    def see(self, event, arguments):
        if event in _RUNNING:
            self.faults.append(f'{event}{arguments!r}'[:200])
        elif event in _WRITING or event == 'open' and _is_written(arguments):
            path = arguments[0]
            if isinstance(path, (str, bytes, os.PathLike)) and not os.fsdecode(path).startswith((self._inside, '/dev/null')):
                self.faults.append(f'{event}({os.fsdecode(path)!r})')


def _is_written(arguments):
    _, mode, how = arguments
    return isinstance(mode, str) and bool(set(mode) & set('wax+')) or bool((how or 0) & (os.O_WRONLY | os.O_RDWR))


def prepare() -> None:
    """Makes this process one in which trials happen: it ends where one computes too long, or takes too much memory."""
    sys.addaudithook(lambda event, arguments: [watch.see(event, arguments) for watch in _watched])
    logging.set_verbosity(logging.FATAL)
    python_logging.disable(python_logging.CRITICAL)
    warnings.simplefilter('ignore')
    pages = int(pathlib.Path('/proc/self/statm').read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + _BYTES,) * 2)
    for number in (signal.SIGPROF, signal.SIGALRM):  # of which `waits` sends the second
        signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def _limited(inside):
    """Yields the list of what is done here that must not be; a signal ends the process when time is up."""
    gc.collect()
    watch = _Watch(inside)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    _watched.append(watch)
    try:
        yield watch.faults
    finally:
        _watched.clear()
        signal.setitimer(signal.ITIMER_PROF, 0)


def attacked(reader: readers.Reader, folders: Folders, name: str) -> Outcome:
    """Returns what comes of an attack by hand."""
    folders.renew()
    reader.attacks(str(folders.inside), str(folders.target))[name]()
    return _outcome(reader, folders)


def mutated(reader: readers.Reader, folders: Folders, seed: int) -> Outcome:
    """Returns what comes of a change of one file that a seed draws."""
    folders.renew()
    generator = random.Random(seed)
    files = sorted(path for path in folders.inside.rglob('*') if path.is_file())
    path = generator.choice(files)
    path.write_bytes(mutations.mutated(path.read_bytes(), generator, folders.target))
    return _outcome(reader, folders)


def good(reader: readers.Reader, folders: Folders) -> Outcome:
    """Returns what comes of the good files; reading them first also loads all that a reader needs."""
    folders.renew()
    return _outcome(reader, folders)


def _outcome(reader, folders):
    with _limited(folders.inside) as faults:
        found = _read(reader, folders)
    harm = '; '.join([*faults, *filter(None, [folders.harm()])])
    return Outcome(FAULT, harm) if harm else found


def _read(reader, folders):
    try:
        reader.read(str(folders.inside))
    except BaseException as error:
        words = str(error)
        problem = _problem(reader, error, words)
        if problem:
            return Outcome(FAULT, f'{problem}: {type(error).__name__}: {words[:300]}')
        return Outcome(REFUSED, words)
    return Outcome(READ, '')


def _problem(reader, error, words):
    """Returns what is wrong with an error, '' if it is a sentence of LingPipe."""
    causes = [error]
    while causes[-1].__cause__ or causes[-1].__context__:
        causes.append(causes[-1].__cause__ or causes[-1].__context__)
    if any(isinstance(each, MemoryError) or type(each).__name__ == 'ResourceExhaustedError' for each in causes):
        return 'takes too much memory'
    if type(error) not in reader.errors:
        return 'no error of its own'
    frame = error.__traceback__
    while frame.tb_next:
        frame = frame.tb_next
    if _OURS not in frame.tb_frame.f_code.co_filename:
        return f'raised in {frame.tb_frame.f_code.co_filename}'
    if len(words) > _LONGEST_SENTENCE:
        return f'a message of {len(words)} characters'
    return '' if len(words) > 30 and words.rstrip().endswith(('.', '?', ')')) else 'no sentence'
