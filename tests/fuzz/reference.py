"""What one device computes: the plain model over the same micro-batches, eagerly and in plain Keras."""

import functools

import keras
import numpy as np
import tensorflow as tf

from tests import recorded_norm
from tests.fuzz import observed
from tests.fuzz.observed import (
    Fitted,
    Step,
    are_different,
    as_arrays,
    as_tensors,
    comparable,
    floats_of,
    repeated,
    take,
    zeros_for_none,
)
from tests.plain_stack import micro_batch_rows


class PlainModel:
    """A Keras model on one device that takes a batch micro-batch by micro-batch.

    The loss is computed once, from the outputs of all micro-batches together. The moving averages of batch norm move
    once a step for each call of a layer, by the statistics of the mini-batch; other state in the order of the
    micro-batches.
    """

    def __init__(self, model, num_micro_batches, optimizer=None):
        self.model, self.has_noise = model, False
        self._optimizer = optimizer
        if optimizer is not None and model.dtype_policy.name == 'mixed_float16':
            self._optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
        self._num_micro_batches = num_micro_batches
        self._norms = [recorded_norm.RecordedNorm(layer) for layer in model._flatten_layers()
                       if isinstance(layer, keras.layers.BatchNormalization)]

    def outputs(self, x):
        """Return the outputs of a batch in inference."""
        return self._forward(x, training=False)[0]

    def value_and_grad(self, data):
        """Return the `Step` of a batch."""
        step = self._step(data, data.total)
        return step._replace(outputs=as_arrays(step.outputs), gradients=as_arrays(step.gradients), input_gradients=[])

    def in_function(self, data, has_open_rows=False):
        """Return the same."""
        del has_open_rows
        return self.value_and_grad(data)

    def under_tape(self, data):
        """Return the same, with zeros for what no loss reaches."""
        step = self._step(data, data.total)
        return step._replace(outputs=as_arrays(step.outputs),
                             gradients=zeros_for_none(step.gradients, self.model.trainable_variables))

    def outputs_of_whole_batch(self, x):
        """Return the outputs of a batch in inference, of which each row may depend on others."""
        return self.model(as_tensors(x), training=False)

    def predict_source(self, data):
        """Return what the model predicts by itself."""
        return observed.predicted(self.model, data)

    def second_pipeline(self, data):
        """Return the outputs in inference."""
        return as_arrays(self.outputs(data.x))

    def draws_anew(self, data, training):
        """Return whether calls, and micro-batches, of equal rows come out different: a pair of booleans."""
        data = repeated(data)
        return are_different(lambda: self._forward(as_tensors(data.x), training)[0], self._num_micro_batches)

    def fit(self, data, compiled, batch_size, num_epochs):
        """Train as `keras.Model.fit` does, without shuffling, and evaluate as `keras.Model.evaluate` does."""
        optimizer, variables, judge = self._optimizer, self.model.trainable_variables, _judge_of(self.model)
        judge.compile('sgd', data.loss, **compiled)
        if variables and not optimizer.built:
            optimizer.build(variables)
        total = functools.partial(judge.compute_loss, None)
        epochs = [
            self._epoch(data, judge, batch_size, lambda batch: self._fit_step(batch, total)) for _ in range(num_epochs)]
        optimizer.finalize_variable_values(variables)
        evaluation = self._epoch(data, judge, batch_size, lambda batch: self._evaluated(batch, total))
        return Fitted(
            {name: [epoch[name] for epoch in epochs] for name in epochs[0]}, as_arrays(optimizer.variables), evaluation)

    def _epoch(self, data, judge, batch_size, run):
        """Return what is said of an epoch: a dictionary from name to value."""
        judge.reset_metrics()
        num_rows, mean = len(tf.nest.flatten(data.x)[0]), keras.metrics.Mean()
        for start in range(0, num_rows, batch_size):
            batch = data.rows(slice(start, min(start + batch_size, num_rows)))
            step = run(batch)
            mean.update_state(step.loss, len(tf.nest.flatten(batch.x)[0]))
            metrics = judge.compute_metrics(None, batch.y, step.outputs, batch.sample_weight)
        return comparable(
            {name: float(value) for name, value in {**metrics, 'loss': mean.result()}.items()}, num_rows % batch_size)

    def _fit_step(self, data, loss):
        """A step that overflows in float16 changes nothing; Keras's leaves the moving averages moved."""
        before = self.model.get_weights()
        step = self._step(data, loss, self._optimizer.scale_loss)
        gradients = [gradient for gradient in as_arrays(step.gradients) if gradient is not None]
        self.has_noise |= _has_noise(gradients)
        if not all(np.isfinite(gradient).all() for gradient in gradients):
            self.model.set_weights(before)
        if step.gradients:
            self._optimizer.apply(step.gradients, self.model.trainable_variables)
        return step

    def _evaluated(self, data, loss):
        outputs, added = self._forward(as_tensors(data.x), training=False)
        return Step(self._total(loss(data.y, outputs, data.sample_weight), added), outputs, [], [])

    def _step(self, data, loss, scale=lambda value: value):
        """Return a `Step` whose outputs are tensors with their masks, and whose gradients are what a tape returns."""
        variables, inputs = self.model.trainable_variables, as_tensors(data.x)
        floats = floats_of(inputs)
        with tf.GradientTape() as tape:
            tape.watch(floats)
            outputs, added = self._forward(inputs, training=True)
            value = self._total(loss(data.y, outputs, data.sample_weight), added)
            scaled = scale(value)
        gradients, of_inputs = tape.gradient(scaled, [[variable.value for variable in variables], floats])
        return Step(float(value), outputs, gradients, zeros_for_none(of_inputs, floats))

    def _total(self, loss, added):
        penalties = [variable.regularizer(variable) for variable in self.model.trainable_variables
                     if variable.regularizer is not None]
        return tf.add_n([tf.cast(part, keras.config.floatx()) for part in [loss, *added, *penalties]])

    def _forward(self, inputs, training):
        """Return the outputs of the batch with their masks, and the losses that layers added, weighted by rows."""
        num_rows, parts, added = len(tf.nest.flatten(inputs)[0]), [], []
        before = [norm.values() for norm in self._norms]
        for rows in micro_batch_rows(num_rows, self._num_micro_batches):
            parts.append(self.model(take(rows, inputs), training=training))
            for norm in self._norms:
                norm.next_micro_batch()
            added += self._added_losses((rows.stop - rows.start) / num_rows)
        for norm, values in zip(self._norms, before):
            norm.move(values)
        return tf.nest.map_structure(_join, *parts), added

    def _added_losses(self, share):
        """Return what layers added for a micro-batch: sums add up, of means each has its share of the rows."""
        return [(1.0 if type(layer).__name__ == 'AddedSum' else share) * tf.reduce_sum(loss)
                for layer in self.model._flatten_layers() for loss in layer._get_own_losses()]


def _join(*parts):
    joined = tf.concat(parts, 0)
    for name in ('_keras_mask', '_keras_logits'):  # the second is what Keras's losses take in place of probabilities
        if getattr(parts[0], name, None) is not None:
            setattr(joined, name, tf.concat([getattr(part, name) for part in parts], 0))
    return joined


def _has_noise(gradients):
    """Whether some number is 0 but for rounding, or all of a gradient are 0, as before a batch norm over one row."""
    sizes = list(map(np.abs, gradients))
    largest = max([size.max(initial=0.0) for size in sizes], default=0.0)
    return any(((size > 0.0) & (size < 1e-3 * largest)).any() or not size.any() for size in sizes)


def _judge_of(model):
    """Return a model that hands on the outputs of another: Keras's own losses and metrics without anything else."""
    symbols = [keras.Input(symbol.shape[1:], dtype=symbol.dtype, name=name)
               for symbol, name in zip(model.outputs, model.output_names)]
    outputs = keras.tree.pack_sequence_as(model.output, symbols)
    return keras.Model(outputs, outputs)
