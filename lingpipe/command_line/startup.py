"""The start of a process: its streams, and TensorFlow without its usual log lines."""

import contextlib
import faulthandler
import gc
import io
import os
import re
import signal
import sys
import tempfile
import types
from collections.abc import Iterator, Sequence
from typing import Any

_LEVEL = 'TF_CPP_MIN_LOG_LEVEL'
_WARNINGS_AND_ERRORS, _FATAL = '1', '3'
# Log lines of absl, and of TensorFlow before 2.20.
_LOG_LINE = re.compile(
    rb'[IWE]\d{4} [\d:.]+ +\d+ \S+:\d+\] |\d{4}-\d\d-\d\d [\d:.]+: [IWE] |'
    rb'WARNING: All log messages before absl::InitializeLog|To enable the following instructions: ')
_OBJECTS_BETWEEN_COLLECTIONS = 100_000
_NVIDIA_DRIVER = '/proc/driver/nvidia/version'
# If installed, these take a third of the import time of Keras, for plots and wrappers that no command uses.
_EXTRAS_OF_KERAS = ('IPython', 'matplotlib', 'sklearn')


def open_missing() -> None:
    """Open standard streams that the parent has closed."""
    for number, name in enumerate(('stdin', 'stdout', 'stderr')):
        try:
            os.fstat(number)
        except OSError:  # otherwise a file opened later would get TensorFlow's log
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # gets the lowest free number
            mode, errors = ('w', 'backslashreplace') if number else ('r', 'strict')
            setattr(sys, name, open(number, mode, encoding='utf-8', errors=errors, closefd=False))


def allow_all_characters() -> None:
    """Make standard output escape characters that its encoding lacks."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors='backslashreplace')


def outlive_readers() -> None:
    """Let this process continue when nobody reads its output any more."""
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # as Python does, but not `lingpipe` in its other modes
    sys.stdout, sys.stderr = _Unfailing(sys.stdout), _Unfailing(sys.stderr)


class _Unfailing:
    """A stream that drops all output after a failed write."""

    def __init__(self, stream):
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._dropping():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._dropping():
            self._stream.flush()

    @contextlib.contextmanager
    def _dropping(self) -> Iterator[None]:
        try:
            yield
        except OSError:  # the reader has gone, or the disk is full
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())


def import_tensorflow(find_devices: bool = True, shows_warnings: bool = True) -> None:
    """Import TensorFlow without its usual log lines.

    Args:
        find_devices: whether to look for accelerators too.
        shows_warnings: whether TensorFlow logs warnings and errors after the import.

    Raises:
        UsageError: the environment names another backend of Keras.
    """
    backend = os.environ['KERAS_BACKEND']
    if backend != 'tensorflow':
        from absl import app  # after `open_missing`: absl logs to what is standard error at its import
        raise app.UsageError(f'KERAS_BACKEND={backend} is set, but LingPipe needs the backend tensorflow. Unset it.')
    # Imports and traces create millions of objects that stay; by default a collection follows every 700 of them.
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    with _not_installed(_EXTRAS_OF_KERAS):
        if _LEVEL in os.environ:
            import tensorflow as tf
            return
        # Warnings and errors, because some failures of devices report their reason nowhere else. In a cluster, a lost
        # machine would cause many.
        os.environ[_LEVEL] = _WARNINGS_AND_ERRORS if shows_warnings else _FATAL
        with _log_lines_held_back() as held:  # TensorFlow writes these lines before it reads the level
            import tensorflow as tf
            finds_gpu = find_devices and tf.config.list_physical_devices('GPU')
            held.are_harmless = not find_devices or finds_gpu or not os.path.exists(_NVIDIA_DRIVER)
        if not shows_warnings:  # TensorFlow warns at each save over several machines
            tf.get_logger().addFilter(lambda record: 'MultiDeviceSaver.save' not in record.getMessage())


@contextlib.contextmanager
def _not_installed(packages: Sequence[str]) -> Iterator[None]:
    """Make imports of `packages` fail inside the `with` block."""
    hidden: dict[str, Any] = dict.fromkeys(name for name in packages if name not in sys.modules)
    sys.modules.update(hidden)  # None as a module raises ModuleNotFoundError
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


@contextlib.contextmanager
def _log_lines_held_back():
    """Hold back standard error until the scope ends."""
    sys.stderr.flush()
    held, stderr = types.SimpleNamespace(are_harmless=False), os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)  # C++ writes to the file descriptor
        faulthandler.enable(stderr)  # a processor that TensorFlow was not built for kills the process here
        try:
            yield held
        finally:
            faulthandler.disable()
            os.dup2(stderr, 2)
            os.close(stderr)
            file.seek(0)
            shown = [line for line in file if not (held.are_harmless and _LOG_LINE.match(line))]
            os.write(2, b''.join(shown))
