"""Suggestions for wrong names: the end of an error sentence that says what was probably meant."""

import difflib
from collections.abc import Collection

_NUM_SHOWN = 5
_LIKENESS = 0.6  # above which a name was probably meant; as in difflib
_LONGEST_NAME, _MOST_NAMES = 100, 10_000  # of those that are compared: files of strangers may hold millions
_AS_LIKELY = 0.2  # how far below the best another name may be and still count as probably meant


def did_you_mean(name: str, names: Collection[str], prefix: str = '', see_all: str = '') -> str:
    """Returns the end of an error sentence that offers the names that were probably meant, or lists the existing ones.

    Args:
        name: the wrong name.
        names: the names that exist.
        prefix: text to show before each of `names`.
        see_all: command that shows all names, if there may be more than five.
    """
    likely = close(name, names)
    if likely:
        return '; did you mean ' + ' or '.join(prefix + each for each in likely) + '?'
    return f'; {what_there_is(name, names, prefix, see_all)}.'


def close(name: str, names: Collection[str]) -> list[str]:
    """Returns the names that were probably meant, at most three; see `did_you_mean`."""
    likeness = _likeness(name, names)
    least = max([_LIKENESS, *(value - _AS_LIKELY for value in likeness.values())])
    return [each for each, value in likeness.items() if value >= least][:3]


def what_there_is(name: str, names: Collection[str], prefix: str = '', see_all: str = '') -> str:
    """Returns words that list the names if they are at most five, else the five nearest; see `did_you_mean`."""
    nearest = [prefix + each for each in _likeness(name, names)]
    if len(nearest) <= _NUM_SHOWN:
        return f'there are: {", ".join(sorted(nearest))}' if nearest else 'there are none'
    where = f' (all: {see_all})' if see_all else ''
    return f'the nearest of {len(nearest)} are: {", ".join(nearest[:_NUM_SHOWN])}{where}'


def _likeness(name, names):
    """Returns {name: likeness}, the most similar name first."""
    matcher = difflib.SequenceMatcher()
    matcher.set_seq2(name[:_LONGEST_NAME])

    def likeness(other: str) -> float:
        matcher.set_seq1(other)
        return matcher.ratio()

    others = sorted({other[:_LONGEST_NAME] for other in names})[:_MOST_NAMES]
    return dict(sorted(((other, likeness(other)) for other in others), key=lambda pair: -pair[1]))
