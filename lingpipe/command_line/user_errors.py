"""Errors in words: those of LingPipe, and those of the user's own files with their line."""

import pathlib
import sysconfig
import traceback

_LINGPIPE = pathlib.Path(__file__).parents[1]
_INSTALLED = tuple({sysconfig.get_path(name) for name in ('stdlib', 'platstdlib', 'purelib', 'platlib')})


def in_words(error: BaseException) -> str:
    """Returns what is wrong; the name of the error's class is left out if LingPipe has written the message.

    Args:
        error: a caught error.
    """
    frames = traceback.extract_tb(error.__traceback__)
    is_ours = bool(frames) and _LINGPIPE in pathlib.Path(frames[-1].filename).parents
    name = type(error).__name__
    return str(error) if is_ours and not isinstance(error, KeyError) else ': '.join(filter(None, (name, str(error))))


def place(error: BaseException) -> str:
    """Returns the innermost line of the user's own files that an error went through, such as 'my_model.py, line 7'.

    Args:
        error: a caught error.

    Returns:
        The place; '' if there is none.
    """
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if _is_users(frame.filename):
            return f'{frame.filename}, line {frame.lineno}: {frame.line}'
    return ''


def _is_users(file):
    return _LINGPIPE not in pathlib.Path(file).parents and not file.startswith((*_INSTALLED, '<'))
