"""Errors that a person can mend: shown as one sentence, without a stack trace."""

import re


class TrainingError(Exception):
    """Something outside the program stopped it: the message says what happened and what to do."""


def first_line(error):
    """Returns an error's message, shortened to its first line and without the names of TensorFlow's operations."""
    lines = re.sub(r'\{\{.*?\}\}|\[Op:.*?\]', '', str(error)).strip().splitlines()
    return lines[0].strip().rstrip('.') if lines else type(error).__name__


def reason(error):
    """Returns why a file operation of TensorFlow failed, without the path that stands before the reason."""
    return first_line(error).rpartition('; ')[2]
