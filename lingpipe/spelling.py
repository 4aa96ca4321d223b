"""Suggestions for wrong names: the end of an error sentence that says what was probably meant."""

import difflib
from collections.abc import Collection

_NUM_SHOWN = 5


def did_you_mean(name: str, names: Collection[str], prefix: str = '', see_all: str = '') -> str:
    """Return the end of an error sentence that offers the names that were probably meant, or lists the existing ones.

    Args:
        prefix: text to show before each of `names`.
        see_all: command that shows all names, if there may be more than five.
    """
    likely = close(name, names)
    if likely:
        return '; did you mean ' + ' or '.join(prefix + each for each in likely) + '?'
    return f'; {what_there_is(name, names, prefix, see_all)}.'


def close(name: str, names: Collection[str]) -> list[str]:
    """Return the names that were probably meant, at most three."""
    return difflib.get_close_matches(name, dict.fromkeys(names))


def what_there_is(name: str, names: Collection[str], prefix: str = '', see_all: str = '') -> str:
    """Return words that list the names if they are at most five, else the five nearest; see `did_you_mean`."""
    names = sorted({prefix + each for each in names})
    if len(names) <= _NUM_SHOWN:
        return f'there are: {", ".join(names)}' if names else 'there are none'
    nearest = difflib.get_close_matches(prefix + name, names, _NUM_SHOWN, cutoff=0)
    where = f' (all: {see_all})' if see_all else ''
    return f'the nearest of {len(names)} are: {", ".join(nearest)}{where}'
