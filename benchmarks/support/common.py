"""What all benchmarks share: separate processes, tables in Markdown and CSV, and a line about the machine."""

import csv
import datetime
import importlib
import json
import os
import pathlib
import platform
import re
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile

import keras
import tensorflow as tf
from absl import flags

from lingpipe import host_processor
from lingpipe.cluster import waits

_LOG_LINE = re.compile(r'[IW]\d{4} |WARNING: All log messages')
ROOT = pathlib.Path(__file__).resolve().parents[2]
COUNTING_MEMORY = {'TF_ENABLE_ONEDNN_OPTS': '1'}
MEMORY_NOTE = 'Memory is counted with TF_ENABLE_ONEDNN_OPTS=1, without which TensorFlow counts none.'
_NUMBER = re.compile(r'\d{1,3}(,\d{3})+(\.\d+)?')
_OUTPUT = flags.DEFINE_string('output', None, 'File to write the report to as well; none by default.')
_CSV = flags.DEFINE_string('csv', None, 'File to write the table to as well, as CSV; a second table goes to FILE_2.csv.')


class ProcessDied(Exception):
    """A benchmark's process ended before it gave all its values; the message says how."""


class LineProcess:
    """A process that answers each line of its input with a line of JSON.

    Args:
        command: list of program and arguments.
        environment: dictionary of environment variables; None: as here.
    """

    def __init__(self, command, environment=None):
        self._errors = tempfile.TemporaryFile()
        self._process = waits.start(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, env=environment)

    def next(self):
        """Let the process run up to its next answer.

        Returns:
            What it answered.

        Raises:
            ProcessDied: the process gave up or was killed.
        """
        self.ask()
        return self.answer()

    def ask(self):
        """Send the line that lets the process go on, and wait for nothing."""
        try:
            self._process.stdin.write('\n')
            self._process.stdin.flush()
        except BrokenPipeError:
            raise ProcessDied(self._cause_of_death()) from None

    def answer(self):
        """Wait for the answer to `ask` and return it."""
        line = self._process.stdout.readline()
        if not line:
            raise ProcessDied(self._cause_of_death())
        return json.loads(line)

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def _cause_of_death(self):
        status = self._process.wait()
        self._errors.seek(0)
        lines = [line for line in self._errors.read().decode(errors='replace').splitlines()
                 if line.strip() and not _LOG_LINE.match(line)]
        how = signal.Signals(-status).name if status < 0 else f'exit status {status}'
        return f'{how}: {lines[-1]}' if lines else how


class Process(LineProcess):
    """A generator function of a benchmark at work in a fresh process, which gives its values one at a time.

    So configurations can take turns, run on a core of their own, or die without harm::

        with common.Process(measure, 'stage', num_cores=2) as process:
            seconds = [process.next() for _ in range(10)]

    Flags have the same values there as here.

    Args:
        function: generator function at the top of a module of `benchmarks`; it yields what JSON can hold.
        *arguments: what to call it with.
        num_cores: how many processor cores the process may use; None: all.
        environment: dictionary of the environment variables that differ from those here, such as COUNTING_MEMORY.
    """

    def __init__(self, function, *arguments, num_cores=None, environment=None):
        request = {'module': function.__globals__['__spec__'].name, 'function': function.__name__,
                   'arguments': arguments, 'cores': sorted(os.sched_getaffinity(0))[:num_cores], 'argv': sys.argv}
        super().__init__(
            [sys.executable, '-c', 'from benchmarks.support import common; common.serve()', json.dumps(request)],
            {**os.environ, 'PYTHONSAFEPATH': '1', 'PYTHONPATH': python_path(), **(environment or {})})


def measured(function, *arguments, num_cores=None, environment=None):
    """Return the first value of a generator function, which a process of its own yields; see `Process`."""
    with Process(function, *arguments, num_cores=num_cores, environment=environment) as process:
        return process.next()


def medians_in_turns(processes, num_turns):
    """Let processes take turns, so that what else happens on the machine meets all of them.

    Args:
        processes: list of `Process`es, which answer with seconds.
        num_turns: how often each has its turn.

    Returns:
        List of the median of each process.
    """
    turns = [[process.next() for process in processes] for _ in range(num_turns)]
    return [statistics.median(seconds) for seconds in zip(*turns)]


def python_path():
    """Return PYTHONPATH for a process: the project comes first, and not the folder that the command is run in."""
    return os.pathsep.join([str(ROOT), *sys.path[1:]])


def serve():
    """The other end of `Process`: runs in the new process, one step of the generator for each line of input."""
    request = json.loads(sys.argv[1])
    answers = os.fdopen(os.dup(sys.stdout.fileno()), 'w')
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # else what a library prints would be taken for an answer
    os.sched_setaffinity(0, request['cores'])
    module = importlib.import_module(request['module'])
    # Flags of the program itself need not be known here.
    flags.FLAGS(request['argv'], known_only=True)
    values = getattr(module, request['function'])(*request['arguments'])
    for _ in sys.stdin:
        print(json.dumps(next(values)), file=answers, flush=True)


class Table:
    """A table of results: in Markdown in a report, whose columns also line up in a terminal, and as CSV for --csv.

    Args:
        header: list of column names.
        rows: list of lists of texts and numbers.
    """

    def __init__(self, header, rows):
        self._cells = [[str(cell) for cell in row] for row in [header, *rows]]

    def __str__(self):
        widths = [max(map(len, column)) for column in zip(*self._cells)]
        lines = ['| ' + ' | '.join(map(str.ljust, row, widths)) + ' |' for row in self._cells]
        lines.insert(1, '|' + '|'.join('-' * (width + 2) for width in widths) + '|')
        return '\n'.join(lines)

    def write_csv(self, path, versions):
        """Write the table below comment lines that say what measured it; numbers lose their thousands separators."""
        command = shlex.join(['python', *(word for word in sys.orig_argv[1:]
                                          if not word.startswith(('--csv=', '--output=')))])
        with path.open('w', newline='') as file:
            file.write(f'# command: {command}\n# processor: {_processor()}\n# versions: {versions}\n'
                       f'# date: {datetime.date.today()}\n')
            csv.writer(file, lineterminator='\n').writerows(
                [cell.replace(',', '') if _NUMBER.fullmatch(cell) else cell for cell in row] for row in self._cells)


def report(*paragraphs, other_versions=''):
    """Print a benchmark's result and the line about the machine; write it where --output and --csv say.

    Args:
        *paragraphs: texts and `Table`s.
        other_versions: what else the figures depend on, such as 'PyTorch 2.15.0'.
    """
    versions = ', '.join(filter(None, [_versions(), other_versions]))
    text = '\n\n'.join([*map(str, paragraphs), f'Machine: {_processor()}; {versions}.'])
    print(text)
    if _OUTPUT.value:
        pathlib.Path(_OUTPUT.value).write_text(text + '\n')
    if _CSV.value:
        tables = [paragraph for paragraph in paragraphs if isinstance(paragraph, Table)]
        for index, table in enumerate(tables, start=1):
            path = pathlib.Path(_CSV.value)
            table.write_csv(path if index == 1 else path.with_stem(f'{path.stem}_{index}'), versions)


def _versions():
    return f'Python {platform.python_version()}, TensorFlow {tf.__version__}, Keras {keras.__version__}'


def peak_mib(function, *arguments):
    """Call a function and return the peak while it ran of TensorFlow's own allocator, which all virtual CPU devices
    share.

    It counts only where TensorFlow uses oneDNN: by itself on newer processors, elsewhere with COUNTING_MEMORY.

    Returns:
        MiB, with what was there before; None where nothing is counted.
    """
    try:
        tf.config.experimental.reset_memory_stats('CPU:0')
    except ValueError:
        function(*arguments)
        return None
    function(*arguments)
    return tf.config.experimental.get_memory_info('CPU:0')['peak'] / 2**20


def mib_text(mib, digits=0):
    """Return the cell of a table for what `peak_mib` gives: empty where nothing was counted."""
    return '' if mib is None else f'{mib:.{digits}f}'


def _processor():
    return f'{host_processor.name()}, {host_processor.num_cores()} cores'
