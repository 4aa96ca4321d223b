"""Importing TensorFlow without the log lines that it writes to every terminal, and without hiding what is wrong."""

import contextlib
import faulthandler
import os
import re
import sys
import tempfile

from lingpipe.training import garbage

_LEVEL = 'TF_CPP_MIN_LOG_LEVEL'
_WARNINGS_AND_ERRORS = '1'
# Absl's form, and that of TensorFlow before 2.20.
_LOG_LINE = re.compile(
    rb'[IWE]\d{4} [\d:.]+ +\d+ \S+:\d+\] |\d{4}-\d\d-\d\d [\d:.]+: [IWE] |'
    rb'WARNING: All log messages before absl::InitializeLog|To enable the following instructions: ')
_NVIDIA_DRIVER = '/proc/driver/nvidia/version'


def import_tensorflow(find_devices: bool = True) -> None:
    """Imports TensorFlow and finds its devices, while lines of its log are held back.

    No log level keeps them away, because they are written before TensorFlow reads it. They are shown when the import
    fails, when there is a GPU that TensorFlow cannot use, and where the user has chosen a level. From then on warnings
    and errors are logged: some failures report their reason nowhere else.

    Args:
        find_devices: whether to look for accelerators too, which logs an error where there are none.
    """
    if _LEVEL in os.environ:
        return
    os.environ[_LEVEL] = _WARNINGS_AND_ERRORS
    with _log_lines_held_back() as held, garbage.rarely_collected():
        import tensorflow as tf
        finds_gpu = find_devices and tf.config.list_physical_devices('GPU')
        held.are_harmless = not find_devices or finds_gpu or not os.path.exists(_NVIDIA_DRIVER)


class _Held:
    """Whether the lines that are held back can be forgotten."""

    are_harmless = False


@contextlib.contextmanager
def _log_lines_held_back():
    """Holds back what is written to the file descriptor of standard error, since the lines come from C++."""
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
            os.write(2, b''.join(shown))
