"""Importing TensorFlow without its usual log lines, but with those that report a problem."""

import contextlib
import faulthandler
import gc
import os
import re
import sys
import tempfile

from absl import app

_LEVEL = 'TF_CPP_MIN_LOG_LEVEL'
_WARNINGS_AND_ERRORS, _ERRORS = '1', '2'
# Absl's form, and that of TensorFlow before 2.20.
_LOG_LINE = re.compile(
    rb'[IWE]\d{4} [\d:.]+ +\d+ \S+:\d+\] |\d{4}-\d\d-\d\d [\d:.]+: [IWE] |'
    rb'WARNING: All log messages before absl::InitializeLog|To enable the following instructions: ')
_OBJECTS_BETWEEN_COLLECTIONS = 100_000
_NVIDIA_DRIVER = '/proc/driver/nvidia/version'


def import_tensorflow(find_devices: bool = True, shows_warnings: bool = True) -> None:
    """Imports TensorFlow and finds its devices, without printing its log lines.

    No log level suppresses these lines, because they are written before TensorFlow reads the level. They are printed if
    the import fails, if TensorFlow cannot use a GPU, or if the user has chosen a level. Afterwards warnings and errors
    are logged, because some failures report their reason nowhere else.

    Args:
        find_devices: whether to look for accelerators too, which logs an error if there are none.
        shows_warnings: False in a cluster, whose connections bring warnings whenever they close.

    Raises:
        UsageError: the environment names another backend of Keras.
    """
    backend = os.environ['KERAS_BACKEND']
    if backend != 'tensorflow':
        raise app.UsageError(f'KERAS_BACKEND={backend} is set, but LingPipe needs the backend tensorflow. Unset it.')
    # Imports and traces create millions of objects that stay; by default a collection follows each 700 of them.
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    if _LEVEL in os.environ:
        return
    os.environ[_LEVEL] = _WARNINGS_AND_ERRORS if shows_warnings else _ERRORS
    with _log_lines_held_back() as held:
        import tensorflow as tf
        finds_gpu = find_devices and tf.config.list_physical_devices('GPU')
        held.are_harmless = not find_devices or finds_gpu or not os.path.exists(_NVIDIA_DRIVER)


class _Held:
    """Whether the captured lines can be discarded."""

    are_harmless = False


@contextlib.contextmanager
def _log_lines_held_back():
    """Captures what is written to the file descriptor of standard error, because the lines come from C++."""
    sys.stderr.flush()
    held, stderr = _Held(), os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        faulthandler.enable(stderr)  # a processor that TensorFlow was not built for kills the process here
        try:
            yield held
        finally:
            faulthandler.disable()
            os.dup2(stderr, 2)
            os.close(stderr)
            file.seek(0)
            shown = [line for line in file if not (held.are_harmless and _LOG_LINE.match(line))]
            with contextlib.suppress(OSError):  # nobody reads standard error, or its disk is full
                os.write(2, b''.join(shown))
