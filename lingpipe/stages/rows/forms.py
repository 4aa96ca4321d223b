"""Known dependence of a tensor on the rows of a batch, and an operation in two traces."""

import enum
from typing import Any, NamedTuple

import tensorflow as tf

NUM_ROWS = (5, 7)  # of the two traces that are compared; primes, so that no other size grows by the same factor


class Form(enum.Enum):
    """The form in which a tensor depends on the rows."""

    CONSTANT = 'constant'
    ROWS = 'rows'
    SUM = 'sum'
    MIXED = 'mixed'


class Dependence(NamedTuple):
    """How a tensor depends on the n rows of a batch.

    ::

        form        value                                                      example, for an input x
        CONSTANT    c * n ** power                                             1.0, a weight; shape(x)[0]: power 1
        ROWS        row i is a function of row i of the inputs, * n ** power   square(x); x / shape(x)[0]: power -1
        SUM         the sum of a function of each row, * n ** power            reduce_sum(x); reduce_mean(x): power -1
        MIXED       anything else                                              x - reduce_mean(x); max(x)

    Attributes:
        power: exponent of the number of rows.
        axis: for ROWS, the dimension that counts the rows. Each row may have several places there, one after the other,
            as in the result of `reshape(x, [-1, 3])`.
    """

    form: Form
    power: int = 0
    axis: int = 0


CONSTANT, MIXED = Dependence(Form.CONSTANT), Dependence(Form.MIXED)
MEAN = Dependence(Form.SUM, -1)  # a constant is its own mean
TOTAL = Dependence(Form.SUM)
ROWS = Dependence(Form.ROWS)


class Node(NamedTuple):
    """An operation in both traces, and the dependences of its inputs."""

    operation: tf.Operation
    other: tf.Operation
    given: list[Dependence]

    def sizes(self, place: int) -> list[int]:
        """Return the shape of an input in the first trace."""
        return self.operation.inputs[place].shape.as_list()

    def value(self, place: int) -> Any:
        """Return the constant value of an input, None if it has none or it depends on the number of rows."""
        return tf.get_static_value(self.operation.inputs[place]) if self.given[place] == CONSTANT else None

    @property
    def rows(self) -> list[int]:
        """Places of the inputs that have rows."""
        return [place for place, each in enumerate(self.given) if each.form is Form.ROWS]


def of_numbers(first: Any, second: Any) -> Dependence:
    """Return the dependence of a number that has these values in the two traces."""
    if first == second:
        return CONSTANT
    return Dependence(Form.CONSTANT, 1) if first * NUM_ROWS[1] == second * NUM_ROWS[0] else MIXED


def grown(one: tf.Tensor, two: tf.Tensor) -> list[int] | None:
    """Return the dimensions that differ between the two traces; None if they are not known."""
    if one.shape.rank is None or one.shape.rank != two.shape.rank:
        return None
    return [axis for axis, (first, second) in enumerate(zip(one.shape, two.shape)) if first != second]


def placed(value: Dependence, one: tf.Tensor, two: tf.Tensor) -> Dependence:
    """Return a dependence with the axis of its rows: the only dimension that grows, and grows as they do; or MIXED."""
    axes = grown(one, two)
    if value == MIXED or one.dtype == tf.variant:  # a list of tensors has no shape
        return value
    if value.form is not Form.ROWS:
        return value if axes == [] else MIXED
    if not axes or len(axes) > 1 or not (one.shape.is_fully_defined() and two.shape.is_fully_defined()):
        return MIXED
    first, second = one.shape[axes[0]], two.shape[axes[0]]
    return value._replace(axis=axes[0]) if first * NUM_ROWS[1] == second * NUM_ROWS[0] else MIXED
