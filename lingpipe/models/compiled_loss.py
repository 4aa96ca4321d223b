"""The losses that a Keras model was compiled with, as the one function that the last partition runs."""

import functools
from typing import NamedTuple

import keras
import tensorflow as tf

from lingpipe.models import loss_additivity
from lingpipe.pipeline import boundary, losses


class Targets(NamedTuple):
    """What the losses compare the outputs with.

    Attributes:
        fractions: tensor `[batch]` of one over the number of examples in the mini-batch; their sum over it is 1.
        values: list of tensors `[batch, ...]`, the targets and sample weights without their nest.
        shares: list of tensors `[batch]`, one a loss where there are several: the number of examples in the mini-batch over the
            weight of the loss in it, for each example the same number. Empty: the losses weigh a micro-batch by its examples.
    """

    fractions: tf.Tensor
    values: list
    shares: list

    @property
    def num_rows(self):
        """The number of examples, a float32 scalar."""
        return tf.cast(tf.shape(self.fractions)[0], tf.float32)


class CompiledLoss:
    """Computes the loss of a micro-batch as Keras would, in a form that adds up over micro-batches.

    Each loss is a mean by a weight of its own, such as the number of tokens that its mask leaves, but their sum can have one
    weight only: the number of examples. With n examples and weight w_k of loss k in the mini-batch, n_m and w_mk in micro-batch
    m, the mean over the mini-batch comes out right where each micro-batch's counts w_mk / n_m * n / w_k times; n / w_k is its
    share.

    Args:
        compile_loss: Keras's record of losses, weights and the outputs they belong to, once built.
        structure: `Structure` of the pair (targets, sample weights), either of which may be, or hold, None.
        kinds: list of `loss_additivity.Kind`, one a loss.
    """

    def __init__(self, compile_loss, structure, kinds):
        self._compile_loss = compile_loss
        self._structure = structure
        self._parts = [_as_sum(part.loss) if kind is loss_additivity.Kind.SUM else losses.as_metrics(part.loss)
                       for part, kind in zip(compile_loss._flat_losses, kinds)]

    @property
    def num_losses(self):
        """How many losses are added up."""
        return len(self._parts)

    def __call__(self, targets, outputs):
        """Returns {name: (mean, weight)} with 'loss' and, where there are several, every loss by the name Keras gives it.

        Args:
            targets: `Targets` of the micro-batch.
            outputs: nest of tensors `[micro_batch, ...]`.
        """
        mean, found = self._compute(targets, outputs)
        if len(found) == 1:
            return {'loss': (mean, found[0][1])}
        names = [part.name for part in self._compile_loss._flat_losses]
        return {'loss': (mean, targets.num_rows)} | {f'{name}_loss': part for name, part in zip(names, found)}

    def weights(self, targets, outputs):
        """Returns, for each loss, what its mean divides by.

        Args:
            targets: `Targets` without shares.
            outputs: nest of tensors `[batch, ...]`.
        """
        return [weight for _, weight in self._compute(targets, outputs)[1]]

    def _compute(self, targets, outputs):
        """Keras finds each loss its targets, outputs and weights; what it makes of them is noted in a list."""
        found = []
        shares = [tf.math.divide_no_nan(tf.reduce_sum(share), targets.num_rows**2) for share in targets.shares]
        fraction = tf.reduce_sum(targets.fractions)
        recording = losses.shallow_copy(self._compile_loss)
        recording._flat_losses = [
            part._replace(loss=functools.partial(_record, found, metrics, share, fraction)) for part, metrics, share in zip(
                recording._flat_losses, self._parts, shares or [None] * len(self._parts))]
        recording._metrics = [None] * len(self._parts)  # they would be updated once a micro-batch
        y_true, sample_weight = self._structure.pack(targets.values)
        return recording(y_true, outputs, sample_weight), found


def no_loss(targets, outputs):
    """The loss of a model that is compiled without one: what its layers add is all that counts."""
    del outputs
    return {'loss': (tf.zeros([]), targets.num_rows)}


def pack_targets(y_true, sample_weight, num_rows):
    """Returns targets and sample weights as `Targets` without shares, and the `Structure` of the pair."""
    is_listed = isinstance(sample_weight, (list, tuple)) and len(sample_weight) == 1 and not keras.tree.is_nested(y_true)
    pair = (y_true, sample_weight[0] if is_listed else sample_weight)
    fraction = tf.math.divide_no_nan(1.0, tf.cast(num_rows, tf.float32))
    return Targets(tf.fill([num_rows], fraction), boundary.unpack(pair).values, []), boundary.structure_of(pair)


def with_shares(targets, weights):
    """Returns the `Targets` with the shares of losses that weigh `weights` in the mini-batch, a list of scalars."""
    rows = tf.shape(targets.fractions)
    return targets._replace(shares=[tf.fill(rows, tf.math.divide_no_nan(targets.num_rows, weight)) for weight in weights])


def _as_sum(loss):
    """A loss that is a sum divides by 1, of which each micro-batch has the share of its examples."""
    def metrics(y_true, outputs, sample_weight):
        return {'loss': (tf.cast(loss(y_true, outputs, sample_weight), tf.float32), None)}

    return metrics


def _record(found, metrics, share, fraction, y_true, outputs, sample_weight):
    total, weight = metrics(y_true, outputs, sample_weight)['loss']
    weight = fraction if weight is None else weight
    mean = tf.math.divide_no_nan(total, weight)
    found.append((mean, weight))
    return mean if share is None else total * share
