"""Kinds of loss functions, found from their graphs."""

import enum
from typing import Any

import keras
import tensorflow as tf

from lingpipe.private_api import keras_losses
from lingpipe.stages import row_dependence, row_rules

# The hinges convert labels if all labels of the batch are 0 or 1.
_MIXING = (keras_losses.circle, keras_losses.dice, keras_losses.tversky, keras_losses.hinge, keras_losses.squared_hinge)


class Kind(enum.Enum):
    """The result of a loss function for a batch."""

    ROWS = 'a loss for each example'
    MEAN = 'the mean over the examples'
    SUM = 'the sum over the examples'


_OF_SCALARS = {row_rules.MEAN: Kind.MEAN, row_rules.CONSTANT: Kind.MEAN, row_rules.TOTAL: Kind.SUM}


class NotAdditive(Exception):  # callers append a clause to the message
    """The error for a loss that cannot be computed over micro-batches."""


def of_loss(loss: Any, y_true: Any, outputs: Any, variables: list[keras.Variable] | None = None,
            sample_weight: Any = None) -> Kind:
    """Determine what a loss function returns for a batch, before the `reduction` of a Keras loss.

    Args:
        loss: a Keras loss, or a function of the nests `y_true` and `outputs`.
        y_true: nest of tensors or specs `[batch, ...]`.
        outputs: nest of tensors or specs `[batch, ...]`.
        variables: Keras variables that the loss must not read.
        sample_weight: None, or weights of the examples, `[batch, ...]`.

    Raises:
        NotAdditive: the graph does not show the `Kind` of the loss, or the loss cannot be computed over micro-batches.
    """
    if _computes_each_example(loss, y_true, outputs):
        num_dimensions = max(len(leaf.shape) for leaf in tf.nest.flatten((y_true, outputs)) if leaf is not None)
        _refuse_weights_of_last_dimensions(name_of(loss), [None] * (num_dimensions - 1), sample_weight)
        return Kind.ROWS
    name = name_of(loss)
    is_standard = isinstance(loss, keras.losses.Loss) and type(loss).__call__ is keras.losses.Loss.__call__
    function: Any = loss.call if is_standard else loss
    given = tf.nest.map_structure(row_dependence.rows, (y_true, outputs))
    try:
        results = row_dependence.of_function(function, *given)
    except Exception as error:  # a user's function may raise anything while it is traced
        raise NotAdditive(f'The loss {name!r} could not be traced ({type(error).__name__})') from error
    _refuse_variables(name, results.graph, variables or [])
    value = results.values[0]
    kind = _OF_SCALARS.get(value.dependence) if value.specs[0].shape.rank == 0 else None
    if value.is_rows:
        _refuse_weights_of_last_dimensions(name, list(value.specs[0].shape), sample_weight)
    if value.is_rows or kind is not None:
        return kind or Kind.ROWS
    raise NotAdditive(f'The graph of the loss {name!r} does not show that the loss of a batch is the mean or the sum '
                      'of the losses of its examples')


def _refuse_weights_of_last_dimensions(name: str, sizes: list[int | None], sample_weight: Any) -> None:
    """Raise NotAdditive if Keras would not align `sample_weight` with the examples."""
    missing = 0 if sample_weight is None else len(sizes) - len(sample_weight.shape)
    if missing > 1 or missing == 1 and sizes[-1] != 1:
        raise NotAdditive(f'Keras takes the sample weights of the loss {name!r} for weights of its last dimensions')


def refuse_mask(name: str, outputs: Any) -> None:
    """Raise NotAdditive if an output has a Keras mask."""
    # Keras would multiply a scalar loss by the mask.
    if any(getattr(leaf, '_keras_mask', None) is not None for leaf in tf.nest.flatten(outputs)):
        raise NotAdditive(f'The loss {name!r} returns one number for a batch of masked outputs')


def name_of(loss: Any) -> str:
    """Return the name of a Keras loss or of a function."""
    return getattr(loss, 'name', '') or getattr(loss, '__name__', type(loss).__name__)


def _computes_each_example(loss: Any, y_true: Any, outputs: Any) -> bool:
    """Return whether a loss is from Keras and surely returns a loss for each example."""
    function, axis = getattr(loss, 'fn', None), getattr(loss, '_fn_kwargs', {}).get('axis', -1)
    rank = max((len(leaf.shape) for leaf in tf.nest.flatten((y_true, outputs)) if leaf is not None), default=0)
    has_features = rank > 1 and isinstance(axis, int) and axis % rank > 0
    return (has_features and type(loss).__module__ == keras_losses.__name__ and function not in _MIXING
            and getattr(function, '__module__', keras_losses.__name__) == keras_losses.__name__)


def _refuse_variables(name: str, graph: Any, variables: list[keras.Variable]) -> None:
    read = [variable.path for variable in variables if any(variable.value is other for other in graph.variables)]
    if read:
        raise NotAdditive(f'The loss {name!r} reads {read[:3]}')
    if any(operation.type.startswith('Assign') for operation in graph.get_operations()):
        raise NotAdditive(f'The loss {name!r} changes a variable')
