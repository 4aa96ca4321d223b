"""Finding out whether a loss adds up over micro-batches, so that the last partition may compute it bit by bit."""

import enum

import keras
import numpy as np
import tensorflow as tf

from lingpipe.private_api import keras_backend, keras_losses
from lingpipe.stages import losses

_ROWS = 5
_CUTS = (0, 1, 3, 5)
_MIXING = (keras_losses.circle, keras_losses.dice, keras_losses.tversky)


class Kind(enum.Enum):
    """How the value of a loss for a batch comes from those for its parts."""

    MEAN = 'mean'
    SUM = 'sum'


class NotAdditive(Exception):
    """The loss of a batch cannot be had from losses of its parts; the message says why, as the beginning of a sentence."""


def kinds_of(compile_loss, y_true, outputs, sample_weight, variables):
    """Finds the kind of each of the losses that a model was compiled with.

    Keras's own losses are known to compute each example by itself. Any other is tried on a few random examples, once as a
    batch and once in parts.

    Args:
        compile_loss: Keras's record of losses, once built.
        y_true: nest of `keras.KerasTensor`, the targets.
        outputs: nest of `keras.KerasTensor`, what the model returns.
        sample_weight: nest of `keras.KerasTensor`, or None.
        variables: list of the Keras variables of the model; those that layers change have new values when the loss reads them.

    Returns:
        List of `Kind`, one a loss.

    Raises:
        NotAdditive: one of them cannot be computed in parts.
    """
    parts = compile_loss._flat_losses
    if all(_computes_each_example(part.loss) for part in parts):
        return [_kind_of_reduction(part.loss) for part in parts]
    return [_kind(part.loss, *specs, variables) for part, specs in zip(parts, _specs(compile_loss, y_true, outputs, sample_weight))]


def _computes_each_example(loss):
    function = getattr(loss, 'fn', None)
    return (type(loss).__module__ == keras_losses.__name__ and function not in _MIXING and loss.reduction not in (None, 'none')
            and getattr(function, '__module__', keras_losses.__name__) == keras_losses.__name__)


def _kind_of_reduction(loss):
    return Kind.SUM if loss.reduction == 'sum' else Kind.MEAN


def _kind(loss, y_true, outputs, is_weighted, variables):
    if loss.reduction in (None, 'none'):
        raise NotAdditive(f'The loss {loss.name!r} has no reduction')
    if _computes_each_example(loss):
        return _kind_of_reduction(loss)
    function = loss.call if type(loss).__call__ is keras.losses.Loss.__call__ else loss
    try:
        _refuse_variables(loss.name, function, y_true, outputs, variables)
        found = _compare(function, *_examples(y_true, outputs))
    except NotAdditive:
        raise
    except Exception as error:
        raise NotAdditive(f'The loss {loss.name!r} could not be tried on random examples ({type(error).__name__})') from error
    if found is None:
        raise NotAdditive(f'The loss {loss.name!r} of a batch is neither the mean nor the sum of the losses of its parts')
    if found != 'rows' and is_weighted:
        raise NotAdditive(f'The loss {loss.name!r} returns one number for a batch with sample weights')
    return _kind_of_reduction(loss) if found == 'rows' else found


def _refuse_variables(name, function, y_true, outputs, variables):
    specs = [tf.nest.map_structure(_spec_of_rows, nest) for nest in (y_true, outputs)]
    graph = tf.function(function, autograph=False).get_concrete_function(*specs).graph
    read = [variable.path for variable in variables if any(variable.value is other for other in graph.variables)]
    if read:
        raise NotAdditive(f'The loss {name!r} reads {read[:3]}')
    if any(operation.type.startswith('Assign') for operation in graph.get_operations()):
        raise NotAdditive(f'The loss {name!r} changes a variable')


def _compare(function, y_true, outputs):
    """Returns 'rows', a `Kind`, or None."""
    def part(nest, start, end):
        return tf.nest.map_structure(lambda array: tf.constant(array[start:end]), nest)

    whole = np.asarray(function(part(y_true, 0, _ROWS), part(outputs, 0, _ROWS)))
    bounds = list(zip(_CUTS[:-1], _CUTS[1:]))
    parts = [np.asarray(function(part(y_true, *bound), part(outputs, *bound))) for bound in bounds]
    if whole.ndim:
        return 'rows' if len(whole) == _ROWS and _close(whole, np.concatenate(parts)) else None
    if _close(whole, sum(value * (end - start) for value, (start, end) in zip(parts, bounds)) / _ROWS):
        return Kind.MEAN
    return Kind.SUM if _close(whole, sum(parts)) else None


def _close(one, other):
    return one.shape == other.shape and np.allclose(one, other, rtol=1e-4, atol=1e-5)


def _specs(compile_loss, y_true, outputs, sample_weight):
    """Keras finds each loss its targets and outputs; what they look like is noted in a list."""
    found = []

    def note(y_true, outputs, sample_weight):
        found.append((*[tf.nest.map_structure(_spec_of, nest) for nest in (y_true, outputs)], sample_weight is not None))
        return tf.zeros([])

    noting = losses.shallow_copy(compile_loss)
    noting._flat_losses = [part._replace(loss=note) for part in noting._flat_losses]
    noting._metrics = [None] * len(noting._flat_losses)
    keras_backend.compute_output_spec(noting, y_true, outputs, sample_weight)
    return found[:len(noting._flat_losses)]


def _spec_of(tensor):
    return tf.TensorSpec(tensor.shape, tensor.dtype)


def _spec_of_rows(spec):
    return tf.TensorSpec(_shape(spec), spec.dtype)


def _shape(spec):
    return [_ROWS, *[size or 3 for size in spec.shape[1:]]]


def _examples(y_true, outputs):
    """Returns random arrays: numbers between 0 and 1, classes for integers, as many as the outputs have."""
    random = np.random.default_rng(0)
    num_classes = max(2, tf.nest.flatten(outputs)[0].shape[-1] or 2)

    def make(spec):
        if spec.dtype.is_floating:
            return random.uniform(0.05, 0.95, _shape(spec)).astype(spec.dtype.as_numpy_dtype)
        return random.integers(0, num_classes, _shape(spec)).astype(spec.dtype.as_numpy_dtype)

    return [tf.nest.map_structure(make, nest) for nest in (y_true, outputs)]
