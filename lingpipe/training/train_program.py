"""The compiled training step, and the state that it changes."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from lingpipe import hyperparams
from lingpipe.cluster import waits
from lingpipe.devices import variable_placement
from lingpipe.input import base_input, row_order
from lingpipe.layers import base_layer
from lingpipe.models import base_task
from lingpipe.optimizers import device_placement, training_optimizer
from lingpipe.pipeline import loss_pass
from lingpipe.training import checkpoint_contents, interruption, watchdog

_NORM = 'gradient_norm'
NON_FINITE = 'The loss or a gradient is not finite.'


class StepResult(NamedTuple):
    """The result of `TrainProgram.run`."""

    num_steps: int
    gradient_norm: tf.Tensor  # global norm of the last step's gradients, before clipping
    metrics: dict  # dictionary from name to values `[num_steps]`, one for each step


class TrainProgram:
    """The state of a task in training, and the training step that changes it.

    ::

        iterate ─> batch ─> _value_and_grad ─> _if_finite ─ no ──> stop, nothing changed; with float16 halve the
                                                   │               loss scale instead ──────────────────┐
                                                  yes                                                   │
                                                   └─> _update: moving statistics ─> clip ─> _apply     v
                                                                ─> moving average of the weights ─> count the step

    A placement overrides some of these methods in a subclass: `iterate`, `state_restored`, `before_save`,
    `should_stop`, `_value_and_grad`, `_deciding`, `_if_finite`, `_apply`, `_is_to_stop`.

    Attributes:
        input_position: `tf.Variable` int64 [3]. The elements are the step at which the batch size last changed,
            the number of examples before this step, and the new batch size.
        stopping: boolean `tf.Variable`. If any thread sets it, `run` ends after the current step.
    """

    def __init__(self, task: base_task.BaseTask, train_params: hyperparams.Params) -> None:
        self._task = task
        self._params = train_params
        self.named_variables = checkpoint_contents.model_variables(task.body)
        self._trainable = task.body.trainable_variables
        _add_l2_regularizers(self._trainable, train_params.l2_regularizer_weight)
        self.optimizer = self._make_optimizer()
        self.average = None
        if train_params.ema_decay:
            self.average = training_optimizer.MovingAverage(self._averaged_variables(), train_params.ema_decay)
        with tf.device('CPU:0'):
            self.global_step = tf.Variable(0, dtype=tf.int64, trainable=False, name='global_step')
            self.input_position = tf.Variable([0, 0, 0], dtype=tf.int64, trainable=False, name='input_position')
            self.stopping = tf.Variable(False, trainable=False, name='stopping')
        self.batch_waits = watchdog.BatchWaits()
        self._scale_on_devices = device_placement.DeviceFunctions(device_placement.scaled)
        self._function = tf.function(self._steps, autograph=False)

    def _make_optimizer(self) -> keras.optimizers.Optimizer:
        return training_optimizer.build_optimizer(self._params, self._trainable, self._task.body.computes_in_float16)

    def _averaged_variables(self) -> dict[str, keras.Variable]:
        """Return the variables that get a moving average."""
        frozen = set(map(id, base_layer.frozen_weights(self._task.body.stack)))
        return {name: variable for name, variable in self.named_variables.items() if id(variable) not in frozen}

    @property
    def read(self) -> Callable:
        """Function for evaluation that returns the moving average of a Keras variable, or its value if it has none."""
        return self.average.read if self.average else variable_placement.read_variable

    @property
    def learning_rate(self) -> Any:
        """Learning rate of the next step."""
        return self.optimizer.learning_rate

    @property
    def partitions(self) -> list:
        """List of the `Partition`s of the body."""
        return self._task.body.partitions

    def iterate(self, batches: Callable[[row_order.Share], tf.data.Dataset]) -> Any:
        """Return the iterator for `run`. `batches(share)` is a dataset with this share of each batch."""
        return iter(batches(row_order.WHOLE))

    def open_input(self, data: base_input.BaseInput, step: int) -> Any:
        """Return an iterator over the batches of `data` after `step`, as an argument of `run`."""
        with watchdog.for_batch(data.source, self._params.input_timeout_seconds, lambda: 0):  # one wait
            return self.iterate(functools.partial(data.training_dataset, self._num_seen(data, step)))

    def _num_seen(self, data: base_input.BaseInput, step: int) -> int:
        """Return how many examples training has seen before a step."""
        since, seen, batch_size = self.input_position.numpy().tolist()
        seen += (step - since) * (batch_size or data.params.batch_size)
        if batch_size != data.params.batch_size:
            self.input_position.assign([step, seen, data.params.batch_size])
        self.batch_waits.is_resumed = seen > 0
        return seen

    def watching_input(self, data: base_input.BaseInput,
                       wait: Callable[..., waits.Wait] = watchdog.for_batch) -> waits.Wait:
        """Return a context manager to use around `run`. It limits the wait for each batch."""
        return wait(data.source, self._params.input_timeout_seconds, self.batch_waits.limited)

    def position(self) -> int | None:
        """Return a number that changes with each step, or None while a step waits for a batch."""
        return self.batch_waits.position()

    def state_restored(self) -> None:
        """Copy restored variables from the host to the devices. This class has nothing to copy."""

    def before_save(self) -> None:
        """Copy trained variables to the host, before a save or an evaluation. This class has nothing to copy."""

    def should_stop(self, interrupted: interruption.Interruption) -> bool:
        """Return whether to stop. Programs that train together agree on the answer."""
        return bool(interrupted)

    def run(self, iterator: Any, num_steps: int) -> StepResult:
        """Train for `num_steps` steps, or until `stopping` is set. All batches must have the same static shape.

        Raises:
            tf.errors.InvalidArgumentError: a loss or gradient is not finite; the message contains NON_FINITE.
        """
        metrics = self._function(iterator, tf.constant(num_steps, tf.int64))
        norms = metrics.pop(_NORM)
        return StepResult(norms.shape[0], norms[-1], metrics)

    def _steps(self, iterator: Iterator[tuple], num_steps: tf.Tensor) -> dict[str, tf.Tensor]:
        """Run `_step` in a loop, and return the metrics of all steps by name."""
        names: list[str] = []  # known once the body of the loop is traced

        def body(index: tf.Tensor, unused_going_on: tf.Tensor,
                 table: tf.TensorArray) -> tuple[tf.Tensor, tf.Tensor, tf.TensorArray]:
            numbers = self._step(self.batch_waits.next_batch(iterator))
            names[:] = numbers.keys()
            row = tf.stack(list(numbers.values()))
            with tf.control_dependencies([row]):  # reads `stopping` after the step
                return index + 1, ~self._is_to_stop(), table.write(index, row)

        with tf.device('CPU:0'):
            count = tf.cast(num_steps, tf.int32)
            table = tf.TensorArray(tf.float32, size=0, dynamic_size=True, infer_shape=False)
            *_, table = tf.while_loop(
                lambda index, going_on, table: going_on & (index < count), body, [0, True, table])
            return dict(zip(names, tf.unstack(tf.ensure_shape(table.stack(), [None, len(names)]), axis=1)))

    def _is_to_stop(self) -> tf.Tensor:
        return self.stopping.read_value()

    def _step(self, batch: tuple) -> dict[str, tf.Tensor]:
        """Build a step, and return the metrics and the gradient norm by name."""
        loss_scale = training_optimizer.scale_of(self.optimizer)
        out, metrics = self._value_and_grad(batch, self.global_step, loss_scale)
        if loss_scale is not None:
            metrics['loss_scale'] = loss_scale
        return numbers_of(self._train_on(out, self.global_step), metrics)

    def _train_on(self, out: loss_pass.ValueAndGrad, step: tf.Variable | tf.Tensor) -> tf.Tensor:
        """Build the update of a step, and return the global norm of the gradients."""
        with self._deciding():
            norm = tf.sqrt(out.squared_norm)
            is_finite = training_optimizer.is_finite(out.loss, norm)
        self._if_finite(is_finite, lambda: self._update(out, norm, step))
        return norm

    def _deciding(self) -> contextlib.AbstractContextManager[None]:
        """Return the `tf.device` context for the operations that decide whether to apply a step."""
        return tf.device('CPU:0')

    def _value_and_grad(self, batch: tuple, step: tf.Variable | tf.Tensor, loss_scale: tf.Tensor | None = None
                        ) -> tuple[loss_pass.ValueAndGrad, dict[str, tf.Tensor]]:
        """Compute the loss, the gradients and the metrics of a batch."""
        inputs, *targets = batch
        out = self._task.body.value_and_grad(
            self._task.loss_and_metrics, inputs, tuple(targets), step=step, assign_state=False, loss_scale=loss_scale)
        return out, {'loss': out.loss, **out.metrics}

    def _if_finite(self, is_finite: tf.Tensor, update: Callable[[], None]) -> None:
        """Build operations that run `update` if `is_finite`, and otherwise reduce the loss scale or fail."""
        scale = training_optimizer.scale_of(self.optimizer)
        with self._deciding():
            # Loss scaling itself may be the cause. While the scale can be reduced, the step is counted, not applied.
            check = tf.debugging.Assert(is_finite if scale is None else is_finite | (scale > 1.0), [NON_FINITE])
        with tf.control_dependencies([check]):
            if scale is None:
                update()
            else:
                with self._deciding():
                    training_optimizer.update_if_finite(self.optimizer, is_finite, update)
            self.global_step.assign_add(1)

    def _update(self, out: loss_pass.ValueAndGrad, norm: tf.Tensor, step: tf.Variable | tf.Tensor) -> None:
        variable_placement.assign(out.state_updates)  # layers may assign weights, which are updated next
        self._apply(self._clip(out.gradients, norm), step)
        if self.average:
            self.average.update(step)

    def _apply(self, gradients: list[tf.Tensor | None], step: tf.Variable | tf.Tensor) -> None:
        """Build the optimizer's update of the trainable variables."""
        training_optimizer.unscaled(self.optimizer).apply(gradients, self._trainable)

    def _clip(self, gradients: list[tf.Tensor | None], norm: tf.Tensor) -> list[tf.Tensor | None]:
        limit = self._params.clip_gradient_norm_to_value
        if not limit:
            return gradients
        factor = device_placement.clipping_factor(norm, limit)
        return self._scale_on_devices(self._trainable, (gradients,), shared=(factor,))


def numbers_of(norm: tf.Tensor, metrics: dict[str, Any]) -> dict[str, tf.Tensor]:
    """Return {name: float32 scalar} of the gradient norm and the metrics of a step."""
    return {name: tf.cast(number, tf.float32) for name, number in {_NORM: norm, **metrics}.items()}


def _add_l2_regularizers(trainable_variables: list[keras.Variable], weight: float) -> None:
    """Add L2 regularizers to kernels."""
    for variable in trainable_variables if weight else []:
        if len(variable.shape) > 1:  # neither a bias nor batch norm
            if variable.regularizer is not None:
                raise ValueError(f'train.l2_regularizer_weight={weight!r} is not possible: {variable.path} has a '
                                 'regularizer of its layer. Set it to 0, and give each layer its own regularizer.')
            variable.regularizer = keras.regularizers.L2(0.5 * weight)
