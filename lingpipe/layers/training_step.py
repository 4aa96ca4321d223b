"""The number of the current training step, for layers whose behaviour changes as training goes on."""

import contextlib
import threading

_local = threading.local()


@contextlib.contextmanager
def training_step(step):
    """Makes `step` what `current_training_step()` returns inside the `with` block.

    The pipeline enters it around every stage, so that a layer need not own a counter of its own.

    Args:
        step: scalar int64 tensor or Python integer; None where the number is unknown.
    """
    outer = current_training_step()
    _local.step = step
    try:
        yield
    finally:
        _local.step = outer


def current_training_step():
    """Returns the step of the innermost `training_step` block, or None outside of all."""
    return getattr(_local, 'step', None)
