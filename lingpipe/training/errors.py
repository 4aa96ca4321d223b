"""Errors that a person can mend: shown as one sentence, without a stack trace."""


class TrainingError(Exception):
    """Something outside the program stopped it: the message says what happened and what to do."""
