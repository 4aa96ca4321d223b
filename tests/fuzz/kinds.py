"""The kinds of layers and functions that a drawn model is made of: what each takes, and how it is drawn."""

from typing import Any, NamedTuple

KINDS = {}
OTHER_FLOATS = ('bfloat16', 'float16', 'float64')


class Kind(NamedTuple):
    """One kind of layer or function."""

    name: str  # its name
    accepts: Any  # function from a `Value` to whether the kind can read it
    add: Any  # function `(drawing, number of a value, the value)` that adds one node or more to the drawing
    weight: int  # how often it is drawn, against the others


def kind(accepts, weight=2):
    """Register the function below as a kind, under its own name."""
    def register(add):
        KINDS[add.__name__] = Kind(add.__name__, accepts, add, weight)
        return add

    return register


def is_float(value):
    """Whether layers take it, which cast floats of other sizes."""
    return value.dtype in ('float32', *OTHER_FLOATS) and value.rows > 0


def is_vector(value):
    """Whether it is float32 `[batch, features]`."""
    return value.is_float and len(value.shape) == 1


def is_sequence(value):
    """Whether it is float32 `[batch, time, features]`."""
    return value.is_float and len(value.shape) == 2


def is_image(value):
    """Whether it is float32 `[batch, height, width, channels]`."""
    return value.is_float and len(value.shape) == 3


def is_exact(value):
    """Whether it is float32, for functions that cast nothing."""
    return value.is_float and len(value.shape) >= 1
