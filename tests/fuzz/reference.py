"""What one device computes: the plain model over the same micro-batches, eagerly and in plain Keras."""

import collections
import functools
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

_EQUAL_ROWS = 16


class Data(NamedTuple):
    """What a model is trained with.

    Attributes:
        x: nest of arrays `[batch, ...]`.
        y: nest of arrays `[batch, ...]`.
        sample_weight: array `[batch, ...]`, or None.
        loss: a Keras loss, a function `(y_true, outputs)` that returns a scalar or a tensor `[batch, ...]`, or what `compile`
            takes.
    """

    x: Any
    y: Any
    sample_weight: Any
    loss: Any

    def total(self, y, outputs, sample_weight):
        """Returns the loss of a whole batch, a scalar."""
        if isinstance(self.loss, keras.losses.Loss):
            return self.loss(y, outputs, sample_weight)
        values = self.loss(y, outputs)
        if sample_weight is None:
            return tf.reduce_mean(values)
        weights = tf.broadcast_to(tf.cast(sample_weight, values.dtype), values.shape)
        return tf.reduce_sum(values * weights) / tf.reduce_sum(weights)

    def rows(self, rows):
        """Returns some of the rows."""
        return self._replace(**{name: _take(rows, nest) for name, nest in self._asdict().items() if name != 'loss'})


class Step(NamedTuple):
    """What a training step computes.

    Attributes:
        loss: scalar.
        outputs: nest of arrays `[batch, ...]`, as the model returns them.
        gradients: list of arrays or Nones, one a trainable variable.
        input_gradients: list of arrays or Nones, one a floating-point input, where they are asked for.
    """

    loss: Any
    outputs: Any
    gradients: list
    input_gradients: list


class Fitted(NamedTuple):
    """What `fit` leaves behind, but for weights and state.

    Attributes:
        history: dictionary from name to the list of the values of the epochs.
        slots: list of the arrays of the optimizer.
    """

    history: dict
    slots: list


class PlainModel:
    """A Keras model on one device that takes a batch micro-batch by micro-batch.

    The loss is computed once, from the outputs of all micro-batches together. The moving averages of batch norm move once a
    step for each call of a layer, by the statistics of the mini-batch; other state in the order of the micro-batches.

    Args:
        model: built `keras.Model`.
        num_micro_batches: M.

    Attributes:
        model: the model.
        has_noise: whether `fit` has met a gradient that is 0 but for rounding.
    """

    def __init__(self, model, num_micro_batches):
        self.model, self.has_noise = model, False
        self._num_micro_batches = num_micro_batches
        self._norms = [_RecordedNorm(layer) for layer in model._flatten_layers()
                       if isinstance(layer, keras.layers.BatchNormalization)]
        self._num_regularizers = sum(variable.regularizer is not None for variable in model.trainable_variables)

    def outputs(self, x):
        """Returns the outputs of a batch in inference."""
        return self._forward(x, training=False)[0]

    def value_and_grad(self, data):
        """Returns the `Step` of a batch."""
        return self._step(data, data.total)._replace(input_gradients=[])

    def in_function(self, data, has_open_rows=False):
        """Returns the same."""
        del has_open_rows
        return self.value_and_grad(data)

    def under_tape(self, data, is_persistent=False):
        """Returns the `Step` of a batch whose loss is that of the outputs alone."""
        del is_persistent
        return self._step(data, data.total, regularizes=False)

    def draws_anew(self, data):
        """Returns whether steps, and micro-batches, of equal rows come out different: a pair of booleans."""
        data = repeated(data)
        return are_different(lambda: self._forward(as_tensors(data.x), training=True)[0], self._num_micro_batches)

    def fit(self, data, make_optimizer, compiled, batch_size, num_epochs):
        """Trains as `keras.Model.fit` does, without shuffling.

        Args:
            data: `Data` of all batches together.
            make_optimizer: function from the model to the optimizer.
            compiled: dictionary of further arguments of `compile`.
            batch_size: rows of a batch; the last one may have fewer.
            num_epochs: number of epochs.

        Returns:
            `Fitted`.
        """
        optimizer, judge = make_optimizer(self.model), _judge_of(self.model)
        judge.compile('sgd', data.loss, **compiled)
        variables, num_rows = self.model.trainable_variables, len(tf.nest.flatten(data.x)[0])
        if variables:
            optimizer.build(variables)
        history = collections.defaultdict(list)
        for _ in range(num_epochs):
            judge.reset_metrics()
            mean = keras.metrics.Mean()
            for start in range(0, num_rows, batch_size):
                batch = data.rows(slice(start, min(start + batch_size, num_rows)))
                step = self._step(batch, functools.partial(judge.compute_loss, None))
                self.has_noise |= _has_noise(step.gradients)
                optimizer.apply(as_tensors(step.gradients), variables)
                mean.update_state(step.loss, len(tf.nest.flatten(batch.x)[0]))
                metrics = judge.compute_metrics(None, batch.y, step.outputs, batch.sample_weight)
            for name, value in {**metrics, 'loss': mean.result()}.items():
                history[name].append(float(value))
        optimizer.finalize_variable_values(variables)
        return Fitted(comparable(history, num_rows % batch_size), as_arrays(optimizer.variables))

    def _step(self, data, loss, regularizes=True):
        variables = self.model.trainable_variables
        inputs = as_tensors(data.x)
        floats = floats_of(inputs)
        with tf.GradientTape() as tape:
            tape.watch(floats)
            outputs, added = self._forward(inputs, training=True)
            value = loss(data.y, outputs, data.sample_weight)
            if regularizes:
                penalties = [variable.regularizer(variable) for variable in variables if variable.regularizer is not None]
                value = tf.add_n([tf.cast(part, tf.float32) for part in [value, *added, *penalties]])
        gradients, of_inputs = tape.gradient(value, [[variable.value for variable in variables], floats])
        return Step(float(value), as_arrays(outputs), as_arrays(gradients), zeros_for_none(of_inputs, floats))

    def _forward(self, inputs, training):
        """Returns the outputs of the batch with their masks, and the losses that layers added, weighted by rows."""
        num_rows, parts, added = len(tf.nest.flatten(inputs)[0]), [], []
        before = [norm.values() for norm in self._norms]
        for rows in micro_batch_rows(num_rows, self._num_micro_batches):
            parts.append(self.model(_take(rows, inputs), training=training))
            for norm in self._norms:
                norm.next_micro_batch()
            if training:
                losses = self.model.losses
                share = (rows.stop - rows.start) / num_rows
                added += [share * tf.reduce_sum(value) for value in losses[:len(losses) - self._num_regularizers]]
        for norm, values in zip(self._norms, before):
            norm.move(values)
        return tf.nest.map_structure(_join, *parts), added


class _RecordedNorm:
    """A batch norm whose inputs are noted, so that its moving averages can be moved once for each call."""

    def __init__(self, norm):
        self._norm = norm
        self._calls, self._position = [], 0
        call = norm.call

        @functools.wraps(call)
        def recording_call(inputs, training=None, mask=None):
            if training and norm.trainable:
                self._record(inputs, mask)
            return call(inputs, training=training, mask=mask)

        norm.call = recording_call

    def values(self):
        """Returns the moving averages."""
        return [self._norm.moving_mean.numpy(), self._norm.moving_variance.numpy()]

    def next_micro_batch(self):
        """Says that the next call is the first of another micro-batch."""
        self._position = 0

    def move(self, values):
        """Moves the averages on from `values`, once for each call."""
        momentum = self._norm.momentum
        for parts in self._calls:
            statistics = self._statistics(parts)
            values = [momentum * value + (1.0 - momentum) * new for value, new in zip(values, statistics)]
        if self._calls:
            self._norm.moving_mean.assign(values[0])
            self._norm.moving_variance.assign(values[1])
        self._calls = []

    def _record(self, inputs, mask):
        if self._position == len(self._calls):
            self._calls.append([])
        inputs = tf.cast(inputs, tf.float32).numpy()
        channels_last = np.moveaxis(inputs, self._norm.axis, -1)
        weights = np.ones(channels_last.shape[:-1]) if mask is None else np.asarray(mask, 'float64')
        self._calls[self._position].append((channels_last.reshape(-1, channels_last.shape[-1]), weights.reshape(-1, 1)))
        self._position += 1

    def _statistics(self, parts):
        inputs = np.concatenate([inputs for inputs, _ in parts]).astype('float64')
        weights = np.concatenate([weights for _, weights in parts])
        total = weights.sum() + (0.0 if weights.all() else keras.config.epsilon())
        mean = (inputs * weights).sum(0) / total
        return mean, (np.square(inputs - mean) * weights).sum(0) / total


def micro_batch_rows(num_rows, num_micro_batches):
    """Returns the rows of each micro-batch as slices; fewer rows than micro-batches give one each."""
    count = min(num_micro_batches, num_rows)
    return [slice(num_rows * m // count, num_rows * (m + 1) // count) for m in range(count)]


def _join(*parts):
    joined = tf.concat(parts, 0)
    masks = [getattr(part, '_keras_mask', None) for part in parts]
    if masks[0] is not None:
        joined._keras_mask = tf.concat(masks, 0)
    return joined


def comparable(history, has_short_batch):
    """Returns a history without the losses of single outputs where a batch is short: Keras then means them over batches."""
    return {name: values for name, values in history.items() if name == 'loss' or not (has_short_batch and name.endswith('_loss'))}


def repeated(data):
    """Returns the first row of `Data`, many times."""
    def repeat(nest):
        return tf.nest.map_structure(lambda leaf: None if leaf is None else np.repeat(leaf[:1], _EQUAL_ROWS, 0), nest)

    return data._replace(x=repeat(data.x), y=repeat(data.y), sample_weight=repeat(data.sample_weight))


def are_different(run, num_micro_batches):
    """Returns whether two steps, and two micro-batches, of equal rows give different outputs.

    Args:
        run: function that returns the outputs of one step over equal rows.
        num_micro_batches: M.

    Returns:
        Pair of booleans.
    """
    first, second = [[np.asarray(leaf) for leaf in tf.nest.flatten(as_arrays(run()))] for _ in range(2)]
    one, *others = micro_batch_rows(_EQUAL_ROWS, num_micro_batches)
    least = _EQUAL_ROWS // num_micro_batches
    return (any((a != b).any() for a, b in zip(first, second)),
            any((leaf[other][:least] != leaf[one][:least]).any() for leaf in first for other in others))


def as_arrays(nest):
    """Returns a nest of tensors, sparse ones too, and Nones as one of arrays and Nones."""
    return tf.nest.map_structure(lambda leaf: None if leaf is None else np.asarray(tf.convert_to_tensor(leaf)), nest)


def _take(rows, nest):
    return tf.nest.map_structure(lambda leaf: None if leaf is None else leaf[rows], nest)


def as_tensors(nest):
    """Returns a nest of arrays and Nones as one of tensors and Nones."""
    return tf.nest.map_structure(lambda leaf: None if leaf is None else tf.constant(leaf), nest)


def floats_of(nest):
    """Returns the list of the floating-point tensors of a nest."""
    return [leaf for leaf in tf.nest.flatten(nest) if leaf is not None and leaf.dtype.is_floating]


def zeros_for_none(gradients, tensors):
    """Returns gradients as arrays; a pipeline cannot say whether its outputs depend on an input."""
    return [np.zeros(tensor.shape, tensor.dtype.as_numpy_dtype) if gradient is None else np.asarray(gradient)
            for gradient, tensor in zip(gradients, tensors)]


def _has_noise(gradients):
    """Whether some number is 0 but for rounding."""
    sizes = [np.abs(gradient) for gradient in gradients if gradient is not None]
    largest = max([size.max(initial=0.0) for size in sizes], default=0.0)
    return any(((size > 0.0) & (size < 1e-3 * largest)).any() for size in sizes)


def _judge_of(model):
    """Returns a model that hands on the outputs of another: Keras's own losses and metrics without anything else."""
    symbols = [keras.Input(symbol.shape[1:], dtype=symbol.dtype, name=name)
               for symbol, name in zip(model.outputs, model.output_names)]
    outputs = keras.tree.pack_sequence_as(model.output, symbols)
    return keras.Model(outputs, outputs)
