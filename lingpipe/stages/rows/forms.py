"""Known dependence of a tensor on the rows of a batch, and an operation in two traces."""

import enum
from typing import Any, NamedTuple

import numpy as np
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
        if self.given[place] != CONSTANT:
            return None
        return tf.get_static_value(self.operation.inputs[place])

    def get(self, name: str) -> Any:
        """Return an attribute."""
        return self.operation.get_attr(name)

    @property
    def rows(self) -> list[int]:
        """Places of the inputs that have rows."""
        return [place for place, each in enumerate(self.given) if each.form is Form.ROWS]


def of_numbers(first: Any, second: Any) -> Dependence:
    """Return the dependence of a number that has these values in the two traces."""
    if first == second:
        return CONSTANT
    return Dependence(Form.CONSTANT, 1) if first * NUM_ROWS[1] == second * NUM_ROWS[0] else MIXED


def aligned(node: Node, power: int = 0) -> Dependence:
    """Return the dependence of an element-wise result, whose inputs are broadcast from the right."""
    rank = node.operation.outputs[0].shape.rank
    if rank is None or any(node.operation.inputs[place].shape.rank is None for place in node.rows):
        return MIXED
    axes = {rank - len(node.sizes(place)) + node.given[place].axis for place in node.rows}
    sizes = {node.sizes(place)[node.given[place].axis] for place in node.rows}
    return Dependence(Form.ROWS, power, axes.pop()) if len(axes) == len(sizes) == 1 else MIXED


def only_rows(node: Node, *places: int) -> bool:
    """Whether the inputs at some places have rows, and all others are constants."""
    return all((each.form is Form.ROWS) if place in places else each.form is Form.CONSTANT
               for place, each in enumerate(node.given)) and not any(each.power for each in node.given)


def axes_of(node: Node, place: int = 1) -> set[int] | None:
    """Return the dimensions of the first input that another input lists; None if they are not known."""
    value = node.value(place)
    rank = len(node.sizes(0))
    return None if value is None else {int(axis) % rank for axis in np.reshape(value, -1)}
