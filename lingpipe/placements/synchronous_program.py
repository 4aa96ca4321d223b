"""Synchronous training with parameter servers, which apply the mean gradient of each batch."""

import functools
from typing import Any

import tensorflow as tf

from lingpipe.devices import variable_placement
from lingpipe.optimizers import device_placement
from lingpipe.pipeline import loss_pass
from lingpipe.placements import server_program
from lingpipe.stages import batch_statistics, losses


class SynchronousProgram(server_program.ServerProgram):
    """A `ServerProgram` that updates the weights as one machine with the whole batch would.

    ::

        batch ─┬─> share 0 ─> any worker ─> gradients ─┐
               ├─> share 1 ─> any worker ─> gradients ─┼─> slots on the servers ─> mean by weight ─> update
               └─> share 2 ─> any worker ─> gradients ─┘

    W workers give the same weights as one machine with W times as many micro-batches, except that all shares draw the
    same random numbers. The mean weighs each share by the total weight of its examples. If a worker is lost, another
    worker computes the share again.

    Raises:
        ValueError: the batch size is not a multiple of the number of workers, or layers compute in float16.
    """

    def __init__(self, task: Any, train_params: Any, servers: Any, batch_spec: Any) -> None:
        sizes = {spec.shape[0] for spec in tf.nest.flatten(batch_spec)}
        if any(size is None or size % servers.num_workers for size in sizes):
            raise ValueError(f'input.batch_size={max(sizes)} cannot be divided among {servers.num_workers} workers. '
                             f'Set it to a multiple of {servers.num_workers}.')
        self._rows_of_share = max(sizes) // servers.num_workers
        super().__init__(task, train_params, servers, batch_spec)
        self._means = device_placement.DeviceFunctions(_weighted_means)
        self._squares = device_placement.DeviceFunctions(device_placement.half_squares)
        self._apply_function = tf.function(self._apply_shares, autograph=False)

    def _run_step(self, iterator):
        count, tensors = self._servers.num_workers, tf.nest.flatten(self.batch_waits.next_batch(iterator))
        for share in range(count):
            rows = slice(share * self._rows_of_share, (share + 1) * self._rows_of_share)
            self._calls.call((tf.constant(share), *[tensor[rows] for tensor in tensors]))
        shares = sorted((self._next_answer() for _ in range(count)), key=lambda row: row[0])
        return self._apply_function(tf.stack([row[1:] for row in shares])).numpy()

    def _traced(self, batch_spec):
        self._slots = {id(variable): _slots_beside(variable, self._servers.num_workers)
                       for variable in self.named_variables.values() if tf.as_dtype(variable.dtype).is_floating}
        share_spec = tf.nest.map_structure(
            lambda spec: tf.TensorSpec([self._rows_of_share, *spec.shape[1:]], spec.dtype), batch_spec)
        return tf.function(self._share, autograph=False).get_concrete_function(
            tf.TensorSpec([], tf.int32), *tf.nest.flatten(share_spec))

    def _share(self, share, *arguments):
        """Write the gradients and new state of a share to the slots, and return its index, loss and metric sums."""
        rows = tf.nest.pack_sequence_as(self._batch_spec, arguments)
        # Each share counts its micro-batches from 0, and so draws the same random numbers as the other shares.
        out, _ = self._value_and_grad(rows, self.global_step.read_value())
        reached = [
            (variable, gradient) for variable, gradient in zip(self._trainable, out.gradients) if gradient is not None]
        self._reached = {id(variable) for variable, _ in reached}
        for variable, gradient in reached:
            self._put(share, variable, gradient)
        _refuse_what_has_no_mean(self._task.body, out.state_updates)
        _refuse_added_losses(self._task.body)
        self._updated = [variable for variable, _ in out.state_updates]
        for variable, value in out.state_updates:
            self._put(share, variable, value)
        self._sum_shapes = tf.nest.map_structure(lambda part: part.shape, out.sums)
        numbers = [tf.cast(share, tf.float32), out.loss, *tf.nest.flatten(out.sums)]
        return tf.concat([tf.reshape(tf.cast(number, tf.float32), [-1]) for number in numbers], 0)

    def _put(self, share, variable, value):
        slots = self._slots[id(variable)]
        with tf.device(slots.device):  # a share that is computed again overwrites its slot with the same values
            tf.raw_ops.ResourceScatterUpdate(resource=slots.handle, indices=share, updates=tf.cast(value, slots.dtype))

    def _shares_of(self, variable):
        """Read the gradient or new value that each share has computed for a variable, `[shares, ...]`."""
        slots = self._slots[id(variable)]
        with tf.device(slots.device):
            return slots.read_value()

    def _apply_shares(self, rows):
        """Update the weights by the mean gradients, and return the gradient norm and the metrics as one tensor."""
        of_shares = self._sums_in(rows[:, 1:])  # a row has the loss of a share, then the metric sums
        sums = tf.nest.map_structure(lambda parts: tf.reduce_sum(parts, 0), of_shares)
        weights = tf.math.divide_no_nan(of_shares['loss'][1], sums['loss'][1])
        loss = tf.tensordot(weights, rows[:, 0], 1)
        metrics = losses.means(sums, losses.results_of(self._task.loss_and_metrics)) | {'loss': loss}
        gradients, halves = self._mean_gradients(weights)
        out = loss_pass.ValueAndGrad(
            loss, gradients, metrics, sums, 2.0 * tf.add_n(halves), self._new_state(), outputs=None)
        norm = self._train_on(out, self.global_step.read_value())
        return self._row(norm, {'loss': loss, **metrics})

    def _sums_in(self, rows):
        """Convert `rows`, the flattened metric sums of each share, to a nest of tensors `[shares, ...]`."""
        shapes = tf.nest.flatten(self._sum_shapes)
        parts = tf.split(rows, [shape.num_elements() for shape in shapes], 1)
        return tf.nest.pack_sequence_as(
            self._sum_shapes, [tf.reshape(part, [-1, *shape]) for part, shape in zip(parts, shapes)])

    def _mean_gradients(self, weights):
        """Return the mean gradients over shares, and half the squared norm of each mean."""
        shares = [self._shares_of(variable) if id(variable) in self._reached else None for variable in self._trainable]
        gradients = self._means(self._trainable, (shares,), (weights,))
        halves = self._squares(self._trainable, (gradients,))
        return gradients, [tf.cast(half, tf.float32) for half in halves if half is not None]

    def _new_state(self):
        """Return pairs (variable, new value) for the variables that layers update, such as a moving mean."""
        weights = tf.fill([self._servers.num_workers], 1.0 / self._servers.num_workers)  # equally many rows per share
        shares = {id(variable): self._shares_of(variable) for variable in self._updated}
        means = {id(variable): mean for variable, mean in zip(
            self._updated, self._means(self._updated, (list(shares.values()),), (weights,)))}
        for norm in batch_statistics.batch_norms(self._task.body.stack):
            pair = id(norm.moving_mean), id(norm.moving_variance)
            if pair[0] in means:
                with tf.device(norm.moving_variance.value.device):
                    means.update(zip(pair, _of_whole_batch(*map(shares.get, pair), norm.momentum)))
        return [(variable, means[id(variable)]) for variable in self._updated]


def _slots_beside(variable, count):
    """Create a buffer for `count` values of a variable, one per share, on the variable's server."""
    with variable_placement.creating_on(variable_placement.device_of(variable)):
        return tf.Variable(tf.zeros([count, *variable.shape], variable.dtype), trainable=False)


def _refuse_what_has_no_mean(body, updates):
    names = [variable.path for variable, _ in updates
             if variable.trainable or not tf.as_dtype(variable.dtype).is_floating]
    norms = {id(norm): norm for stage in body.stages for norm in stage.repeated_or_masked_norms}
    names += [norm.name for norm in norms.values()]
    if names:
        raise ValueError(
            f'Layers assign {names[:3]}, integers or weights that are trained, or call a batch norm more than once or '
            'with a mask, of which shares of a batch have no mean. Choose another --cluster.')


def _refuse_added_losses(body):
    for stage in body.stages:
        if stage.adds_losses:
            raise ValueError(
                f'A layer of partition {stage.index} ({", ".join(layer.name for layer in stage.layers[:5])}) adds a '
                'loss (add_loss or an activity regularizer), but shares of a batch count by the weights of their '
                'examples (--update=sync). Leave it out, or choose another --cluster.')


def _of_whole_batch(means, variances, momentum):
    """Combine moving means and variances of shares into values of the whole batch."""
    factor = max(1.0 - momentum, 1e-12)  # a statistic's weight in its average; averages / factor differ like statistics
    mean, variance, _ = tf.unstack(factor * batch_statistics.of_all_replicas(
        tf.stack([means / factor, variances / factor, tf.ones_like(means)]),
        functools.partial(tf.reduce_sum, axis=0)))
    return mean, variance


def _weighted_means(unused_variables, shares, weights):
    return [tf.tensordot(tf.cast(weights, share.dtype), share, 1) for share in shares]
