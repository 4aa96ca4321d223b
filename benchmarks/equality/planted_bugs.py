"""Checks whether the tests find the defects of `defects.py`, each planted alone in a copy of the checkout.

    python -m benchmarks.equality.planted_bugs --defects=3,7 --whole_suite

The tests that a defect names run first, up to the first failure; with --whole_suite the others follow if none fails.
Only a test that passes without the defect finds it. Exit status 1 means that one was missed.
"""

import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

from absl import app, flags

from benchmarks.equality import defects
from benchmarks.support import common

_DEFECTS = flags.DEFINE_list('defects', None, 'Numbers of the defects to plant; all by default.')
_WHOLE_SUITE = flags.DEFINE_bool('whole_suite', False, 'Whether to run all tests if those named find nothing.')

_ONE_PROCESS = ['-o', 'addopts=', '-q', '--import-mode=importlib']
_ALL_TESTS = ['-m', 'slow or not slow', '--ignore=tests/benchmarks/equality/test_planted_bugs.py']  # it misses the text
_FAILED = re.compile(r'^(?:FAILED|ERROR) (.+?)(?: - .*)?$', re.MULTILINE)
_PASSED, _NOT_RUN = 0, (3, 4, 5)  # exit statuses of pytest
_MOST_SECONDS = 3600


class TestsNotRun(Exception):
    """pytest ran no tests; the message says why."""


class Finding(NamedTuple):
    """A test that fails with a defect, None if there is none, and the seconds that the tests took."""

    test: str | None
    seconds: float


def patched(defect, root):
    """Return the text of a defect's file with the defect.

    Args:
        defect: `defects.Defect`.
        root: `pathlib.Path` of the checkout.

    Raises:
        ValueError: its old text is not there exactly once.
    """
    text = (root / 'lingpipe' / defect.file).read_text('utf-8')
    if (count := text.count(defect.old)) != 1:
        raise ValueError(f'{defect.old!r} occurs {count} times in lingpipe/{defect.file}, but a defect ({defect.words}) '
                         'needs it once. Change the defect in benchmarks/equality/defects.py.')
    return text.replace(defect.old, defect.new)


def find(defect, root, whole_suite=False):
    """Plant a defect and look for a test that fails, but passes without it.

    Args:
        defect: `defects.Defect`.
        root: `pathlib.Path` of a copy of the checkout, which is as before afterwards.
        whole_suite: whether to run all tests if those of the defect find nothing.

    Returns:
        `Finding`.

    Raises:
        ValueError: as `patched`.
        TestsNotRun: the tests are not there.
    """
    begin = time.monotonic()
    with _planted(defect, root):
        test = _first_failure(root, [*_ONE_PROCESS, *(f'tests/{name}' for name in defect.tests.split())])
        if test is None and whole_suite:
            test = _first_failure(root, _ALL_TESTS)
    seconds = time.monotonic() - begin
    if test is not None and test.startswith('tests/') and _first_failure(root, [*_ONE_PROCESS, test]):
        test = None  # it fails in any case
    return Finding(test, seconds)


@contextlib.contextmanager
def _planted(defect, root):
    path = root / 'lingpipe' / defect.file
    before, after = path.read_text('utf-8'), patched(defect, root)
    path.write_text(after, 'utf-8')
    try:
        yield
    finally:
        path.write_text(before, 'utf-8')


def _first_failure(root, arguments):
    """Run tests up to the first failure and return its name, or None."""
    command = [sys.executable, '-m', 'pytest', '-x', '-rfE', '-p', 'no:cacheprovider', *arguments]
    with tempfile.TemporaryFile('w+') as log:  # a pipe would stay open as long as what a test leaves running
        process = subprocess.Popen(command, cwd=root, env={**os.environ, 'PYTHONPATH': str(root)},
                                   start_new_session=True, stdout=log, stderr=log)
        try:
            process.wait(_MOST_SECONDS)
        except subprocess.TimeoutExpired:
            return f'none ends in {_MOST_SECONDS} s'
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        log.seek(0)
        printed = log.read()
    if process.returncode in _NOT_RUN:
        raise TestsNotRun(f'{" ".join(command)}:\n{printed[-2000:]}')
    failures = _FAILED.findall(printed)
    if process.returncode == _PASSED:
        return None
    return failures[0] if failures else f'exit status {process.returncode}'


@contextlib.contextmanager
def _copy_of_checkout():
    names = subprocess.run(['git', 'ls-files', '-z', '--cached', '--others', '--exclude-standard'], cwd=common.ROOT,
                           check=True, capture_output=True, text=True).stdout.split('\0')
    with tempfile.TemporaryDirectory() as folder:
        for name in filter(None, names):
            source, target = common.ROOT / name, pathlib.Path(folder, name)
            if source.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)
        yield pathlib.Path(folder)


def main(unused_argv):
    numbers = list(map(int, _DEFECTS.value or range(1, len(defects.DEFECTS) + 1)))
    rows, found = [], 0
    with _copy_of_checkout() as root:
        for number in numbers:
            defect = defects.DEFECTS[number - 1]
            test, seconds = find(defect, root, _WHOLE_SUITE.value)
            found += test is not None
            rows.append([number, defect.words, defect.file, 'found' if test else 'NOT FOUND', test or '', round(seconds)])
            print(*rows[-1], file=sys.stderr, flush=True)
    common.report(common.Table(['number', 'defect', 'file', 'result', 'by', 'seconds'], rows),
                  f'The tests found {found} of {len(numbers)} defects.')
    return int(found < len(numbers))


if __name__ == '__main__':
    app.run(main)
