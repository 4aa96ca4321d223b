"""The end of every error sentence about a wrong name: what was probably meant."""

import difflib


def did_you_mean(name, names, prefix=''):
    """Returns the end of an error sentence that offers the names nearest to `name`, or lists all where none is near.

    Args:
        name: the wrong name.
        names: the names that exist.
        prefix: text to show before each of `names`.
    """
    near = difflib.get_close_matches(name[:100], sorted(names), n=3)
    if near:
        return '; did you mean ' + ' or '.join(prefix + near_name for near_name in near) + '?'
    shown = ', '.join(prefix + existing for existing in sorted(names)[:20]) + (', ...' if len(names) > 20 else '')
    return f'; there are: {shown}.' if names else '; there are none.'
