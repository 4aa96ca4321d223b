"""Runs commands in processes that have TensorFlow imported already, which takes most of the time of a command that fails."""

import multiprocessing
import os
import pathlib
import runpy
import sys
import time

RUN = str(pathlib.Path(__file__).parents[1] / 'run.py')


class ForkedCommand:
    """A command that runs; what it writes goes to files, of which there may be any number at a time.

    Args:
        process: the process.
        paths: of the files that take its standard output and standard error.
    """

    def __init__(self, process, paths):
        self.pid = process.pid
        self._process = process
        self._paths = paths

    def await_line(self, start):
        """Returns when the command has written a line to standard error that starts with `start`, or has ended."""
        while self._process.is_alive() and f'\n{start}' not in f'\n{self._paths[1].read_text()}':
            time.sleep(0.05)

    def communicate(self):
        """Returns the exit code, standard output and standard error."""
        self._process.join()
        return self._process.exitcode, *(path.read_text() for path in self._paths)


class ForkedCommands:
    """Runs run.py as a person does, but for the import of TensorFlow, which a server of processes has done once.

        tests ── start ──> server, has imported TensorFlow, has made no device
                              └── fork ──> run.py --model=...  in a folder, standard output and error in files

    Args:
        folder: path of a folder for what the commands write.
    """

    def __init__(self, folder):
        self._folder = folder
        self._num_commands = 0
        self._context = multiprocessing.get_context('forkserver')
        self._context.set_forkserver_preload(['tensorflow', 'tensorflow_datasets', 'lingpipe.training.trainer'])

    def start(self, arguments, folder, environment):
        """Returns the `ForkedCommand`.

        Args:
            arguments: strings, those of run.py.
            folder: path of the folder to run in.
            environment: environment variables of the command.
        """
        self._num_commands += 1
        paths = [self._folder / f'{name}_{self._num_commands}' for name in ('out', 'err')]
        for path in paths:
            path.touch()
        process = self._context.Process(target=_run, args=(arguments, str(folder), environment, paths))
        process.start()
        return ForkedCommand(process, paths)


def _run(arguments, folder, environment, paths):
    os.environ.clear()
    os.environ.update(environment)
    sys.path.insert(1, environment['PYTHONPATH'])
    os.chdir(folder)
    for descriptor, path in zip((1, 2), paths):
        os.dup2(os.open(path, os.O_WRONLY), descriptor)
    sys.argv = [RUN, *arguments]
    runpy.run_path(RUN, run_name='__main__')
