"""The losses of a compiled Keras model as one function, run on the last partition if they add up over micro-batches."""

import functools
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from lingpipe.pipeline import gpipe_layer
from lingpipe.private_api import keras_backend
from lingpipe.stages import boundary, graph_pieces, loss_kinds, losses, stage_layers
from lingpipe.stages.loss_kinds import Kind, NotAdditive


def kinds_of(compile_loss: keras.Loss, y_true: Any, outputs: Any, sample_weight: Any,
             variables: list[keras.Variable]) -> list[loss_kinds.Kind]:
    """Find the `Kind` of each loss that a model was compiled with, for a batch described by `keras.KerasTensor`s.

    Args:
        compile_loss: Keras's record of losses, once built.
        variables: the variables of the model; if layers change some of them, the loss reads the new values.

    Raises:
        NotAdditive: one of the losses cannot be computed in parts.
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
    """Record the specs of the targets and outputs that Keras gives each loss, and return them as a list."""
    found = []

    def note(y_true, outputs, sample_weight):
        weights = None if sample_weight is None else _spec_of(sample_weight)
        found.append((*[tf.nest.map_structure(_spec_of, nest) for nest in (y_true, outputs)], weights))
        return tf.zeros([])

    noting = losses.shallow_copy(compile_loss)
    noting._flat_losses = [part._replace(loss=note) for part in noting._flat_losses]
    noting._metrics = [None] * len(noting._flat_losses)
    keras_backend.compute_output_spec(noting, y_true, outputs, sample_weight)
    return found[:len(noting._flat_losses)]


class Targets(NamedTuple):
    """The targets of the losses, and their weights."""

    # tensor `[batch]`: 1 / n for each example, n = examples in the batch
    fractions: tf.Tensor
    values: list  # list of tensors `[batch, ...]`, the targets and sample weights without their nest
    # list of tensors `[batch]`, one per loss k if there are several: n / w_k, repeated for each example; w_k is the
    # weight of loss k in the batch. Empty: a single loss has its own weight for each micro-batch
    shares: list

    @property
    def num_rows(self) -> int:
        """The number of examples, a scalar."""
        return tf.cast(tf.shape(self.fractions)[0], self.fractions.dtype)


class CompiledLoss:
    """Computes the loss of a micro-batch as Keras would, in a form that can be summed over micro-batches.

    Each loss is a mean by its own weight, such as the number of unmasked tokens, but the sum of losses can have only
    one weight: the number of examples. Let the batch have n examples and weight w_k in loss k, and let micro-batch m
    have n_m examples and weight w_mk. Then the mean over the batch is right if the loss of micro-batch m counts
    w_mk / n_m * n / w_k times; n / w_k is the share of loss k.

    Args:
        compile_loss: Keras's record of losses, weights and the outputs they belong to, once built.
        structure: `Structure` of the pair (targets, sample weights), either of which may be, or hold, None.
    """

    def __init__(self, compile_loss: keras.Loss, structure: boundary.Structure | None, kinds: list) -> None:
        self._compile_loss = compile_loss
        self._structure = structure
        self._parts = [_metrics_of(part.loss, kind) for part, kind in zip(compile_loss._flat_losses, kinds)]

    @property
    def num_losses(self) -> int:
        """Number of losses that are summed."""
        return len(self._parts)

    def __call__(self, targets: Targets, outputs: Any) -> dict:
        """Return {name: (mean, weight)} with 'loss' and, if there are several losses, each loss by its Keras name."""
        mean, found = self._compute(targets, outputs)
        if len(found) == 1:
            return {'loss': (mean, found[0][1])}
        names = [part.name for part in self._compile_loss._flat_losses]
        return {'loss': (mean, targets.num_rows)} | {f'{name}_loss': part for name, part in zip(names, found)}

    def weights(self, targets: Targets, outputs: Any) -> list[tf.Tensor]:
        """Return, for each loss, the divisor of its mean; `outputs` belong to the whole batch."""
        return [weight for _, weight in self._compute(targets, outputs)[1]]

    def _compute(self, targets, outputs):
        """Let Keras give each loss its targets, outputs and weights, and record the results in a list."""
        found = []
        shares = [tf.math.divide_no_nan(tf.reduce_sum(share), tf.cast(targets.num_rows, share.dtype)**2)
                  for share in targets.shares]
        fraction = tf.reduce_sum(targets.fractions)
        recording = losses.shallow_copy(self._compile_loss)
        recording._flat_losses = [
            part._replace(loss=functools.partial(_record, found, metrics, share, fraction))
            for part, metrics, share in zip(
                recording._flat_losses, self._parts, shares or [None] * len(self._parts))]
        recording._metrics = [None] * len(self._parts)  # they would be updated once per micro-batch
        y_true, sample_weight = self._structure.pack(targets.values)
        return recording(y_true, outputs, sample_weight), found


def no_loss(targets: Targets, outputs: Any) -> dict[str, tuple]:
    """Return the loss 0 for a model compiled without a loss, so that it trains only on the losses of its layers."""
    del outputs
    return {'loss': (tf.zeros([]), targets.num_rows)}


def pack_targets(y_true: Any, sample_weight: Any, num_rows: tf.Tensor) -> tuple:
    """Return targets and sample weights as `Targets` without shares, and the `Structure` of the pair."""
    is_listed = isinstance(sample_weight,
                           (list, tuple)) and len(sample_weight) == 1 and not keras.tree.is_nested(y_true)
    pair = (y_true, sample_weight[0] if is_listed else sample_weight)
    return Targets(losses.fractions_of(num_rows), boundary.unpack(pair).values, []), boundary.structure_of(pair)


def with_shares(targets: Targets, weights: Any) -> Targets:
    """Return `Targets` with each loss's share: the number of rows divided by the loss's entry in `weights`."""
    rows = tf.shape(targets.fractions)
    return targets._replace(
        shares=[tf.fill(rows, tf.math.divide_no_nan(tf.cast(targets.num_rows, weight.dtype), weight))
                for weight in weights])


def _metrics_of(loss, kind):
    """Return a loss as a function `(y_true, outputs, sample_weight) -> {'loss': (sum, weight)}`."""
    is_sum = kind is Kind.SUM or kind is Kind.ROWS and loss.reduction == 'sum'
    metrics = _as_sum(loss) if is_sum else losses.KerasMean(loss)

    def of_unmasked(y_true, outputs, sample_weight):
        loss_kinds.refuse_mask(loss.name, outputs)
        return metrics(y_true, outputs, sample_weight)

    return metrics if kind is Kind.ROWS else of_unmasked


def _as_sum(loss):
    """Wrap a loss that is a sum: its weight in a batch is 1, split over micro-batches by their numbers of examples."""
    def metrics(y_true, outputs, sample_weight):
        return {'loss': (losses.in_full_precision(loss(y_true, outputs, sample_weight)), None)}

    return metrics


def _record(found, metrics, share, fraction, y_true, outputs, sample_weight):
    total, weight = metrics(y_true, outputs, sample_weight)['loss']
    weight = tf.cast(fraction, total.dtype) if weight is None else weight
    mean = tf.math.divide_no_nan(total, weight)
    found.append((mean, weight))
    return mean if share is None else total * share


def weights_of_batch(pipe: gpipe_layer.GPipeLayer, loss: CompiledLoss, x: Any, targets: Targets) -> list | None:
    """Compute the divisor of each loss's mean over a batch.

    A mask passes through a model from inputs to outputs without using the model's weights. So the model and its losses
    are traced as one graph, and only the part on which the divisors depend is run. Zeros replace the outputs, because
    only their shapes matter::

        tokens ─┬─> not equal to 0 ─> mask ───────────┬─> weight of the loss
                └─> embedding ─> layers ─> outputs    │   (below: traced, but not run)
                                             zeros ─> loss

    Args:
        loss: `compiled_loss.CompiledLoss`, whose weights are to be found.
        x: nest of tensors `[batch, ...]`, the input.

    Returns:
        List of scalars, one per loss; None if a weight depends on more than masks, targets and sample weights.
    """
    inputs, structure = boundary.unpack(x), boundary.structure_of(x)
    variables = [variable for layer in pipe.stack for variable in layer.variables]
    weights, zeros = [], []

    def trace(inputs, targets, values):
        with keras.StatelessScope(state_mapping=list(zip(variables, values)), initialize_variables=False):
            outputs = stage_layers.call_layers(pipe.stack, boundary.pack(inputs, structure), training=True)
            parts = boundary.unpack(outputs)
            zeros.extend(_zeros_in_place_of(output, targets.fractions) for output in parts.values)
            blank = boundary.pack(parts._replace(values=list(zeros)), boundary.structure_of(outputs))
            weights.extend(loss.weights(targets, blank))

    specs = tf.nest.map_structure(_spec_of, (inputs, targets, variables))
    graph = tf.function(trace, autograph=False).get_concrete_function(*specs).graph
    given = tf.nest.flatten((inputs, targets))
    arguments, values = graph.inputs[:len(given)], graph.inputs[len(given):]
    if _depend_on(weights, values, zeros, arguments):
        return None
    piece = graph_pieces.GraphPiece(graph, arguments, weights, name='weights_of_losses')
    known, _ = piece({inner.ref(): outer for inner, outer in zip(arguments, given)})
    return [known[weight.ref()] for weight in weights]


def _zeros_in_place_of(output, fractions):
    """Return zeros for an output; if one of its sizes is unknown, it is read from the output itself."""
    sizes = output.shape[1:]
    if not sizes.is_fully_defined():
        return tf.zeros_like(output)
    return tf.zeros(tf.stack([tf.shape(fractions)[0], *sizes]), output.dtype)


def _depend_on(weights, values, zeros, arguments):
    """Whether the weights of losses depend on weights of the model, random numbers, or the values of outputs."""
    stops = {tensor.ref() for tensor in arguments}
    graph = weights[0].graph
    shapes = {operation.outputs[0].ref() for operation in graph.get_operations() if operation.type in ('Shape', 'Size')}
    needed, read = graph_pieces.ancestors(weights, stops=stops), graph_pieces.ancestors(weights, stops=stops | shapes)
    return (any(tensor.op in needed for tensor in values) or any(tensor.op in read for tensor in zeros)
            or any(operation.op_def.is_stateful for operation in needed))


def _spec_of(tensor):
    return tf.TensorSpec(tensor.shape, tensor.dtype)
