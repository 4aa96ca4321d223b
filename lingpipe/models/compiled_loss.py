"""The losses of a compiled Keras model, computed per micro-batch in the last partition."""

import functools
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from lingpipe.private_api import keras_backend
from lingpipe.stages import boundary, loss_kinds, losses, micro_batches
from lingpipe.stages.loss_kinds import Kind, NotAdditive


def kinds_of(compile_loss: keras.Loss, y_true: Any, outputs: Any, sample_weight: Any,
             variables: list[keras.Variable]) -> list[loss_kinds.Kind]:
    """Return the `Kind` of each loss. All tensors are `keras.KerasTensor`s.

    Raises:
        NotAdditive: a loss cannot be computed in parts, or reads one of `variables`.
    """
    return [_kind_of(part.loss, *specs, variables) for part, specs in zip(
        compile_loss._flat_losses, _specs(compile_loss, y_true, outputs, sample_weight))]


def _kind_of(loss: keras.Loss, y_true: Any, outputs: Any, sample_weight: Any,
             variables: list[keras.Variable]) -> loss_kinds.Kind:
    if loss.reduction in (None, 'none'):
        raise NotAdditive(f'The loss {loss.name!r} has no reduction')
    kind = loss_kinds.of_loss(loss, y_true, outputs, variables, sample_weight)
    if kind is not Kind.ROWS and sample_weight is not None:
        raise NotAdditive(f'The loss {loss.name!r} returns one number for a batch with sample weights')
    return kind


def _specs(compile_loss, y_true, outputs, sample_weight):
    """Return the specs of targets, outputs and sample weights for each loss."""
    found = []

    def note(y_true, outputs, sample_weight):
        found.append([micro_batches.specs_of_tensors(nest) for nest in (y_true, outputs, sample_weight)])
        return tf.zeros([])

    noting = losses.shallow_copy(compile_loss)
    noting._flat_losses = [part._replace(loss=note) for part in noting._flat_losses]
    noting._metrics = [None] * len(noting._flat_losses)
    keras_backend.compute_output_spec(noting, y_true, outputs, sample_weight)
    return found[:len(noting._flat_losses)]


class Targets(NamedTuple):
    """The targets of the losses, with sample weights."""

    # tensor `[batch]`: 1 / n for each example, n = examples in the batch
    fractions: tf.Tensor
    values: list  # list of tensors `[batch, ...]`, the flattened targets and sample weights

    @property
    def num_rows(self) -> int:
        """The number of examples, a scalar."""
        return tf.cast(tf.shape(self.fractions)[0], self.fractions.dtype)


class CompiledLoss:
    """The loss of a micro-batch, with a weight for averaging over micro-batches.

    A loss that is not a mean or a sum over examples must be the only loss.

    Args:
        compile_loss: Keras's built `CompileLoss`, with all losses and loss weights.
        structure: `Structure` of the pair (targets, sample weights).
    """

    def __init__(self, compile_loss: keras.Loss, structure: boundary.Structure, kinds: list) -> None:
        self._compile_loss = compile_loss
        self._structure = structure
        self._parts = [_metrics_of(part.loss, kind) for part, kind in zip(compile_loss._flat_losses, kinds)]

    def __call__(self, targets: Targets, outputs: Any) -> dict:
        """Return {'loss': (mean, weight)}, with more entries such as 'dense_loss' if there are several losses.

        Raises:
            NotAdditive: one of several losses is weighed by masks or sample weights.
        """
        found: list[tuple] = []  # results of the losses, which Keras calls
        fraction = tf.reduce_sum(targets.fractions)
        recording = losses.shallow_copy(self._compile_loss)
        recording._flat_losses = [part._replace(loss=functools.partial(_record, found, metrics, fraction))
                                  for part, metrics in zip(recording._flat_losses, self._parts)]
        recording._metrics = [None] * len(self._parts)  # they would be updated once per micro-batch
        y_true, sample_weight = self._structure.pack(targets.values)
        mean = recording(y_true, outputs, sample_weight)
        if len(found) == 1:
            return {'loss': (mean, found[0][1])}
        parts = self._compile_loss._flat_losses
        for part, metrics in zip(parts, self._parts):
            if isinstance(metrics, losses.KerasMean) and metrics.has_own_weights:
                raise NotAdditive(f'The loss {part.loss.name!r}, one of several, is weighed by masks or sample weights')
        return {'loss': (mean, targets.num_rows)} | {
            f'{part.name}_loss': pair for part, pair in zip(parts, found)}


def no_loss(targets: Targets, outputs: Any) -> dict[str, tuple]:
    """Return loss 0, for a model compiled without a loss."""
    del outputs
    return {'loss': (tf.zeros([]), targets.num_rows)}  # training then uses only losses that layers add


def pack_targets(y_true: Any, sample_weight: Any, num_rows: tf.Tensor) -> tuple:
    """Return flattened `Targets`, and the `Structure` that restores targets and sample weights."""
    is_listed = isinstance(sample_weight,
                           (list, tuple)) and len(sample_weight) == 1 and not keras.tree.is_nested(y_true)
    pair = (y_true, sample_weight[0] if is_listed else sample_weight)
    return Targets(losses.fractions_of(num_rows), boundary.unpack(pair).values), boundary.structure_of(pair)


def _metrics_of(loss, kind):
    """Return a function that computes the sum and the weight of a loss."""
    is_sum = kind is Kind.SUM or kind is Kind.ROWS and loss.reduction == 'sum'
    metrics = _as_sum(loss) if is_sum else losses.KerasMean(loss)

    def of_unmasked(y_true, outputs, sample_weight):
        loss_kinds.refuse_mask(loss.name, outputs)
        return metrics(y_true, outputs, sample_weight)

    return metrics if kind is Kind.ROWS else of_unmasked


def _as_sum(loss):
    """Return a function for a loss that is a sum. The function returns {'loss': (sum, None)}."""
    def metrics(y_true, outputs, sample_weight):
        # The weight None means: the micro-batch's fraction of the batch.
        return {'loss': (losses.in_full_precision(loss(y_true, outputs, sample_weight)), None)}

    return metrics


def _record(found, metrics, fraction, y_true, outputs, sample_weight):
    total, weight = metrics(y_true, outputs, sample_weight)['loss']
    weight = tf.cast(fraction, total.dtype) if weight is None else weight
    found.append((tf.math.divide_no_nan(total, weight), weight))
    return found[-1][0]
