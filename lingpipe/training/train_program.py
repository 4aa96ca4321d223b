"""The compiled training step: forward, backward, clip and update, several times a call."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from lingpipe.cluster import waits
from lingpipe.devices import variable_placement
from lingpipe.input import batch_share
from lingpipe.layers import base_layer
from lingpipe.optimizers import device_functions, loss_scaling
from lingpipe.training import checkpoint_contents, optimization

NON_FINITE = 'The loss or a gradient is not finite.'


class StepResult(NamedTuple):
    """What a call of the training function reports.

    Attributes:
        num_steps: number of steps that were done.
        gradient_norm: global norm of the last step's gradients, before clipping.
        metrics: dictionary from name to its values in the steps of the call `[num_steps]`.
    """

    num_steps: int
    gradient_norm: tf.Tensor
    metrics: dict


class TrainProgram:
    """Everything that changes while a task trains, and the one training step that changes it.

    ::

        iterate ─> batch ─> _value_and_grad ─> _if_finite ─ no ──> stop, nothing changed; with float16 halve the
                                                   │               loss scale instead and go to the next step
                                                  yes
                                                   └─> _update: moving statistics ─> clip ─> _apply
                                                                ─> moving average of the weights ─> count the step

    A placement changes some of these steps in a subclass, and leaves the others as they are:

    =================  ===========================================================================================
    iterate            which rows of a batch come to this process
    state_restored     what follows a restored checkpoint, such as copies of the variables for devices
    before_save        what comes before variables are saved or evaluated, such as bringing them back
    should_stop        whether to stop, where several programs have to agree on it
    _value_and_grad    where the gradients of a batch are computed, and how they are summed
    _if_finite         what becomes of a step whose loss or gradients are not finite
    _apply             where the arithmetic of the optimizer runs
    =================  ===========================================================================================

    Args:
        task: a `BaseTask` whose body is built.
        train_params: the Params of training.

    Attributes:
        input_seconds: `tf.Variable` float64, seconds that steps have waited for their batches so far.
        stopping: boolean `tf.Variable`; when any thread sets it, a call of `run` ends with the step that is under way.
    """

    def __init__(self, task: Any, train_params: Any) -> None:
        self._task = task
        self._params = train_params
        self.named_variables = checkpoint_contents.model_variables(task.body)
        self._trainable = self._trained_places = task.body.trainable_variables
        _add_l2_regularizers(self._trainable, train_params.l2_regularizer_weight)
        self.optimizer = self._make_optimizer()
        self.average = None
        if train_params.ema_decay:
            self.average = optimization.MovingAverage(self._averaged_variables(), train_params.ema_decay)
        with tf.device('CPU:0'):
            self.global_step = tf.Variable(0, dtype=tf.int64, trainable=False, name='global_step')
            self.stopping = tf.Variable(False, trainable=False, name='stopping')
            self._awaited = tf.Variable(0, dtype=tf.int64, trainable=False, name='awaited')  # odd: a batch is
            self.input_seconds = tf.Variable(0, dtype=tf.float64, trainable=False, name='input_seconds')
        self._metric_names = []
        self._scales = device_functions.DeviceFunctions(device_functions.scaled)
        self._function = tf.function(self._steps, autograph=False)

    def _make_optimizer(self):
        return optimization.build_optimizer(self._params, self._trainable, self._task.body.computes_in_float16)

    def _averaged_variables(self):
        """Returns those of `named_variables` that have a moving average: frozen weights are their own."""
        frozen = set(map(id, base_layer.frozen_weights(self._task.body.stack)))
        return {name: variable for name, variable in self.named_variables.items() if id(variable) not in frozen}

    @property
    def read(self) -> Callable:
        """Function that returns the value of a Keras variable for evaluation: its moving average, if there is one."""
        return self.average.read if self.average else variable_placement.read_variable

    @property
    def learning_rate(self) -> Any:
        """Learning rate of the step that comes next."""
        return self.optimizer.learning_rate

    @property
    def partitions(self) -> list:
        """List of `Partition`: which layers went where."""
        return self._task.body.partitions

    def iterate(self, batches: Callable[[batch_share.Share], tf.data.Dataset]) -> Any:
        """Returns the iterator over the rows of batches that come to this process, which `run` takes.

        Args:
            batches: function from a `Share` to the `tf.data.Dataset` of its rows of each batch.
        """
        return iter(batches(batch_share.WHOLE))

    def open_input(self, data: Any, step: int) -> Any:
        """Returns what `iterate` does for the batches of an input from a step on.

        Args:
            data: the input.
            step: number of steps done.
        """
        with waits.for_batch(data.source, self._params.input_timeout_seconds, int):
            return self.iterate(functools.partial(data.training_dataset, step * data.params.batch_size))

    def watching_start(self, details: Callable[[], str] = str) -> waits.Wait:
        """Returns the scope of `state_restored`, for which others may have to read a checkpoint first.

        Args:
            details: as `waits.Wait` takes it.
        """
        return waits.for_files('weights to reach all devices', self._params.checkpoint_timeout_seconds, details)

    def watching_input(self, data: Any) -> waits.Wait:
        """Returns the scope in which an input that gives `run` no batch ends the process with a sentence.

        Args:
            data: the input.
        """
        def position():
            awaited = int(self._awaited)
            return awaited if awaited % 2 else None

        return waits.for_batch(data.source, self._params.input_timeout_seconds, position)

    def state_restored(self) -> None:
        """Makes the host's variables what is trained, after a checkpoint was restored to them; here they are."""

    def before_save(self) -> None:
        """Brings the host's variables up to what is trained, before they are saved or evaluated; here they are."""

    def should_stop(self, interrupted: Any) -> bool:
        """Whether to stop; where several programs train together they agree on it.

        Args:
            interrupted: the `Interruption` of this program.
        """
        return bool(interrupted)

    def run(self, iterator: Any, num_steps: int) -> StepResult:
        """Trains for some steps; for fewer, but at least one, where `stopping` is set.

        Args:
            iterator: iterator of (images, labels, weights) batches of one static shape.
            num_steps: number of steps.

        Returns:
            `StepResult`.

        Raises:
            tf.errors.InvalidArgumentError: a loss or gradient is not finite; the message has NON_FINITE in it.
        """
        rows = self._function(iterator, tf.constant(num_steps, tf.int64))
        metrics = dict(zip(self._metric_names, tf.unstack(rows[:, 1:], axis=1)))
        return StepResult(rows.shape[0], rows[-1, 0], metrics)

    def _steps(self, iterator, num_steps):
        """Returns a row for each step: gradient norm, then the metrics in the order of `_metric_names`."""

        def body(index, unused_going_on, rows):
            row = self._step(self._next_batch(iterator))
            with tf.control_dependencies([row]):  # whether to stop is asked after the step, not while it runs
                return index + 1, ~self._is_to_stop(), rows.write(index, row)

        with tf.device('CPU:0'):
            count = tf.cast(num_steps, tf.int32)
            rows = tf.TensorArray(tf.float32, size=0, dynamic_size=True, infer_shape=False)
            _, _, rows = tf.while_loop(lambda index, going_on, rows: going_on & (index < count), body, [0, True, rows])
            return tf.ensure_shape(rows.stack(), [None, 1 + len(self._metric_names)])

    def _next_batch(self, iterator):
        """Tells a watching thread when a batch is waited for, from inside of a graph too, and counts the seconds."""
        with tf.control_dependencies([self._awaited.assign_add(1)]):
            begin = _now()
        with tf.control_dependencies([begin]):
            batch = next(iterator)
        with tf.control_dependencies(tf.nest.flatten(batch)):
            self._awaited.assign_add(1)
            self.input_seconds.assign_add(_now() - begin)
        return batch

    def _is_to_stop(self):
        return self.stopping.read_value()

    def _step(self, batch):
        loss_scale = loss_scaling.scale_of(self.optimizer)
        out, metrics = self._value_and_grad(batch, self.global_step, loss_scale)
        if loss_scale is not None:
            metrics['loss_scale'] = loss_scale
        return self._row(self._train_on(out, self.global_step), metrics)

    def _train_on(self, out, step):
        """Lays out all of a step that follows its gradients.

        Args:
            out: `ValueAndGrad`.
            step: number of steps done.

        Returns:
            Global norm of the gradients.
        """
        with self._deciding():
            norm = tf.sqrt(out.squared_norm)
            is_finite = tf.math.is_finite(out.loss) & tf.math.is_finite(norm)
        self._if_finite(is_finite, lambda: self._update(out, norm, step))
        return norm

    def _deciding(self):
        """Returns the device scope of the few numbers that decide about a step."""
        return tf.device('CPU:0')

    def _value_and_grad(self, batch, step, loss_scale=None):
        """Returns the `ValueAndGrad` of a batch, and its metrics, the loss first."""
        images, *targets = batch
        out = self._task.body.value_and_grad(
            self._task.loss_and_metrics, images, tuple(targets), step=step, assign_state=False, loss_scale=loss_scale)
        return out, {'loss': out.loss, **out.metrics}

    def _row(self, norm, metrics):
        self._metric_names = list(metrics)
        return tf.stack([norm, *metrics.values()])

    def _if_finite(self, is_finite, update):
        """Stops training where a step is not finite, else updates and counts it.

        Where the loss is scaled, numbers that are not finite may come of that alone: the step is skipped while the
        scale can fall.

        Args:
            is_finite: boolean scalar.
            update: function without arguments that lays out `_update`.
        """
        scale = loss_scaling.scale_of(self.optimizer)
        with self._deciding():
            check = tf.debugging.Assert(is_finite if scale is None else is_finite | (scale > 1.0), [NON_FINITE])
        with tf.control_dependencies([check]):
            if scale is None:
                update()
            else:
                with self._deciding():
                    loss_scaling.update_if_finite(self.optimizer, is_finite, update)
            self.global_step.assign_add(1)

    def _update(self, out, norm, step):
        variable_placement.assign(out.state_updates)  # before weights that layers assign themselves get their update
        self._apply(self._clip(out.gradients, norm), step)
        if self.average:
            self.average.update(step)

    def _apply(self, gradients, step):
        """Lays out the arithmetic of the optimizer.

        Args:
            gradients: list of tensors, one a trainable variable, or None.
            step: number of steps done.
        """
        loss_scaling.unscaled(self.optimizer).apply(gradients, self._trainable)

    def _clip(self, gradients, norm):
        limit = self._params.clip_gradient_norm_to_value
        if not limit:
            return gradients
        return self._scales(self._trained_places, (gradients,), (limit / tf.maximum(norm, limit),))


def _now():
    """Returns the time in seconds, by the clock of the host that reads batches."""
    with tf.device('CPU:0'):
        return tf.timestamp()


def _add_l2_regularizers(trainable_variables, weight):
    """Kernels (rank 2 and more) are regularised; biases and batch norm are not."""
    for variable in trainable_variables if weight else []:
        if len(variable.shape) > 1:
            own = variable.regularizer
            variable.regularizer = keras.regularizers.L2(0.5 * weight) if own is None else _WithL2(own, weight)


class _WithL2(keras.regularizers.Regularizer):
    """A layer's own regularizer, whose attributes it has, and half of the weight times the sum of squares."""

    def __init__(self, own, weight):
        vars(self).update(getattr(own, '__dict__', {}))
        self._terms = [own, keras.regularizers.L2(0.5 * weight)]

    def __call__(self, x):
        return sum(term(x) for term in self._terms)
