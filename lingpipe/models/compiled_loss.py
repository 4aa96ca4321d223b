"""The losses that a Keras model was compiled with, as the one function that the last partition runs."""

import tensorflow as tf

from lingpipe.pipeline import boundary, losses


class CompiledLoss:
    """Computes the loss of a micro-batch as Keras would, in a form that adds up over micro-batches.

    With one loss the mini-batch's mean is that of Keras in every case. With several, each of them is; their sum counts a
    micro-batch by its number of examples, which is the same unless masks or the reduction 'mean_with_sample_weight' let
    micro-batches weigh differently.

    Args:
        compile_loss: Keras's record of losses, weights and the outputs they belong to, once built.
        structure: `Structure` of the pair (targets, sample weights), either of which may be, or hold, None.

    Raises:
        ValueError: a loss has a reduction that does not add up over micro-batches.
    """

    def __init__(self, compile_loss, structure):
        self._compile_loss = compile_loss
        self._structure = structure
        self._parts = [losses.as_metrics(part.loss) for part in compile_loss._flat_losses]

    def __call__(self, targets, outputs):
        """Returns {name: (mean, weight)} with 'loss' and, where there are several, every loss by the name Keras gives it.

        Args:
            targets: list of tensors `[micro_batch, ...]` from `pack_targets`.
            outputs: nest of tensors `[micro_batch, ...]`.
        """
        ones, *values = targets
        y_true, sample_weight = self._structure.pack(values)
        found = []
        mean = self._recording(found)(y_true, outputs, sample_weight)
        if len(found) == 1:
            return {'loss': (mean, found[0][1])}
        names = [part.name for part in self._compile_loss._flat_losses]
        return {'loss': (mean, tf.reduce_sum(ones))} | {f'{name}_loss': part for name, part in zip(names, found)}

    def _recording(self, found):
        """Keras finds each loss its targets, outputs and weights; what it makes of them is noted in `found`."""
        recording = losses.shallow_copy(self._compile_loss)
        recording._flat_losses = [
            part._replace(loss=_recorder(metrics, found)) for part, metrics in zip(recording._flat_losses, self._parts)]
        recording._metrics = [None] * len(self._parts)  # they would be updated once a micro-batch
        return recording


def pack_targets(y_true, sample_weight, num_rows):
    """Returns the pair as a list of tensors, with a tensor `[num_rows]` of ones in front, and its `Structure`."""
    pair = (y_true, sample_weight)
    return [tf.ones([num_rows]), *boundary.unpack(pair).values], boundary.structure_of(pair)


def _recorder(metrics, found):
    def loss(y_true, outputs, sample_weight):
        total, weight = metrics(y_true, outputs, sample_weight)['loss']
        mean = tf.math.divide_no_nan(total, weight)
        found.append((mean, weight))
        return mean

    return loss
