"""A Keras model that trains a pipeline with any schedule."""

import functools
import gc
import types
import warnings
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from lingpipe import patches
from lingpipe.devices import device_kinds, variable_placement
from lingpipe.layers import base_layer
from lingpipe.models import compiled_loss, model_surface
from lingpipe.optimizers import device_placement, optimizer_parts, training_optimizer
from lingpipe.pipeline import validation
from lingpipe.private_api import keras_backend
from lingpipe.stages import losses, micro_batches

_STEPS = ('train_step', 'test_step', 'predict_step', 'compute_loss', 'compute_metrics', 'metrics',
          'get_metrics_result', 'reset_metrics',
          'fit', 'evaluate', 'predict', 'train_on_batch', 'test_on_batch', 'predict_on_batch', 'make_train_function',
          'make_test_function', 'make_predict_function')
_PROPERTIES = 'losses', 'trainable_weights', 'trainable_variables', '__call__', '_compute_loss'
# Methods that tasks of KerasHub override, and that `HubPipelineModel` replaces.
_PREPROCESSING = ('fit', 'evaluate', 'predict', 'train_on_batch', 'test_on_batch', 'predict_on_batch', '__call__')

_OBJECTS_BETWEEN_COLLECTIONS = 100_000


@keras.saving.register_keras_serializable(package='lingpipe')
class PipelineModel(model_surface.ModelSurface):
    """A Keras model that trains a pipeline with `fit`.

    Results are as on one device, except with dropout or with layers that mix examples, such as batch norm.
    The loss is computed inside the last partition, and training uses the schedule of the pipeline. A pipeline that is
    called as a layer always uses GPipe's schedule. The optimizer updates each variable on the variable's device::

        model = lingpipe.PipelineModel(pipe)
        model.compile('adam', 'sparse_categorical_crossentropy', metrics=['accuracy'])
        model.fit(x, y, batch_size=64, epochs=3, validation_data=(x_test, y_test))

    If a subclass overrides `compute_loss`, the loss is computed on the whole batch, outside the pipeline.

    Args:
        **kwargs: arguments of `keras.Model`; `name` defaults to the name of the model that the pipeline was made from.
    """

    def __new__(cls, pipe: keras.Layer | None = None, **unused: Any) -> 'PipelineModel':
        """Make a `HubPipelineModel` if the pipeline was made from a KerasHub task."""
        if cls is PipelineModel and _preprocesses(getattr(pipe, 'model', None)):
            from lingpipe.models import hub_pipeline_model
            cls = hub_pipeline_model.HubPipelineModel
        return super().__new__(cls)

    def __init__(self, pipe: keras.Layer, **kwargs: Any) -> None:
        super().__init__(pipe, **kwargs)
        self._kept = types.SimpleNamespace(losses={}, generation=None)

    def compile(self, optimizer: Any = 'rmsprop', loss: Any = None, loss_weights: list | None = None,
                metrics: list | None = None, weighted_metrics: list | None = None,
                run_eagerly: bool = False,
                steps_per_execution: int = 1, jit_compile: bool | str = 'auto', auto_scale_loss: bool = True) -> None:
        """Configure training, as `keras.Model.compile` does.

        Args:
            optimizer: Keras optimizer. `compile` changes the optimizer to work on each variable's device.
            run_eagerly: whether the parts of a step outside the pipeline run eagerly; each partition is always traced.
            jit_compile: whether XLA compiles the functions of each partition; 'auto': as in the pipeline's Params.
            auto_scale_loss: whether the loss is scaled if layers compute in float16.

        Raises:
            ValueError: an argument, or a method of the model that the pipeline was made from, is unsupported.
        """
        validation.refuse_strategies(self.name)
        self._refuse_overridden_steps()
        if optimizer is not None:
            optimizer = self._with_loss_scale(keras.optimizers.get(optimizer), auto_scale_loss)
            device_placement.place(optimizer)
        self._kept.losses.clear()
        jit_compile = self.pipe.params.jit_compile if jit_compile == 'auto' else jit_compile
        self.pipe.set_jit_compile(bool(jit_compile))  # Keras skips setters that are given the getter's value
        super().compile(
            optimizer, loss, loss_weights, metrics, weighted_metrics, run_eagerly, steps_per_execution, jit_compile,
            auto_scale_loss=False)

    @property
    def jit_compile(self) -> Any:
        """Always False: XLA never compiles a whole step. Setting it to True makes XLA compile each partition."""
        return False

    @jit_compile.setter
    def jit_compile(self, value: Any) -> None:
        self.pipe.set_jit_compile(bool(value))

    def make_train_function(self, force: bool = False) -> Callable:
        """Return the function that runs training steps; see `keras.Model.make_train_function`.

        Raises:
            ValueError: the optimizer is missing, or was built without one of the trainable weights.
        """
        if self.optimizer is None:
            raise ValueError('optimizer=None was given to compile, which does for evaluation only. Give an optimizer.')
        self._follow_layers(self.train_function)
        self._refuse_new_weights()
        if self.pipe.built:
            optimizer_parts.move_slots(self._built_optimizer())  # a move while tracing would force another trace
        super().make_train_function(force)
        return self._with_plain_graph('train_function')

    def make_predict_function(self, force: bool = False) -> Any:
        """Return the prediction function; see `keras.Model.make_predict_function`."""
        self._refuse_overridden_steps()
        self._follow_layers(self.predict_function)
        super().make_predict_function(force)
        return self._with_plain_graph('predict_function')

    def make_test_function(self, force: bool = False) -> Any:
        """Return the evaluation function; see `keras.Model.make_test_function`."""
        self._follow_layers(self.test_function)
        super().make_test_function(force)
        return self._with_plain_graph('test_function')

    def _with_plain_graph(self, name: str) -> Callable:
        """Replace Keras's step function `self.<name>` with one that runs without graph optimization, and return it."""
        function = getattr(self, name)
        if not isinstance(function, functools.partial):
            setattr(self, name, functools.partial(_run_plain, function))
        return getattr(self, name)

    def _follow_layers(self, function):
        """Move new weights to their stages; if `function` is None, first check that the model's graph is unchanged."""
        validation.refuse_strategies(self.name)
        if self.pipe.built:
            if function is None:  # Keras has not made the function yet
                self.pipe.source.refuse_changes()
            self.pipe.place_new_weights()

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compile a loaded model with the saved arguments of `compile`."""
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.built:
            self.optimizer.build(self.trainable_variables)

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Create the weights in the first call, then run `call`; see `keras.Model`."""
        self._build_for(inputs)
        return super().__call__(inputs, *args, **kwargs)

    def call(self, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        """Run the pipeline; see `GPipeLayer.call`."""
        self.pipe._clear_losses()
        outputs = self.pipe(inputs, training=training, mask=mask)
        self.add_loss(self.pipe._get_own_losses())
        return outputs

    def train_step(self, data: Any) -> dict[str, tf.Tensor]:
        """Train on one batch; see `keras.Model.train_step`.

        A loss that can be summed over micro-batches is computed inside the last partition. Any other loss is computed
        on the whole batch, outside the pipeline.
        """
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        try:
            outputs = self._train_in_pipeline(*self.loss_and_targets(x, y, sample_weight), x)
        except compiled_loss.NotAdditive as error:
            outputs = self._train_on_whole_batch(x, y, sample_weight, error)
        except losses.WeightUnknownError:
            reason = 'A layer adds a loss, and the weight of the main loss depends on outputs'
            outputs = self._train_on_whole_batch(x, y, sample_weight, reason)
        self._build_metrics(y, outputs)
        return self._on_last_device(self.compute_metrics, x, y, outputs, sample_weight)

    def loss_and_targets(self, x: Any, y: Any = None, sample_weight: Any = None) -> tuple[Callable, Any]:
        """Return the arguments `loss_fn` and `y_true` for `GPipeLayer.value_and_grad`.

        Raises:
            NotAdditive: the loss must be computed on the whole batch, outside the pipeline.
        """
        self._build_for(x)
        targets, structure = compiled_loss.pack_targets(y, sample_weight, _num_rows(x))
        return self._loss_in_pipeline(x, y, sample_weight, structure), targets

    def test_step(self, data: Any) -> dict[str, tf.Tensor]:
        """Evaluate one batch; see `keras.Model.test_step`."""
        if self._overrides('call'):
            return super().test_step(data)
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        self._build_for(x)
        outputs, added_losses = self.pipe.outputs_and_added_losses(x)
        self._build_metrics(y, outputs)
        return self._on_last_device(self._evaluate, x, y, outputs, sample_weight, added_losses)

    def _evaluate(self, x, y, outputs, sample_weight, added_losses):
        self._clear_losses()
        self.add_loss(added_losses)
        loss = self._compute_loss(x, y, outputs, sample_weight, training=False)
        self._loss_tracker.update_state(loss, sample_weight=_num_rows(x))
        return self.compute_metrics(x, y, outputs, sample_weight)

    def _build_metrics(self, y, outputs):
        """Create the variables of the metrics, outside of traced functions."""
        metrics = self._compile_metrics
        if metrics is not None and not metrics.built and not self._overrides('compute_metrics'):
            with base_layer.outside_of_scopes():  # inside, variables would cause another trace
                self._on_last_device(metrics.build, y, outputs)

    def _train_in_pipeline(self, loss, targets, x):
        is_eager = tf.executing_eagerly()
        before = self._values_to_restore() if is_eager else []
        out = self.pipe.value_and_grad(
            loss, x, targets, return_outputs=self._compile_metrics is not None or self._overrides('compute_metrics'),
            assign_state=is_eager, loss_scale=training_optimizer.scale_of(self._built_optimizer()))
        self._require_some_loss()
        is_finite = training_optimizer.is_finite(out.loss, out.squared_norm)
        self._update(out.gradients, is_finite, out.state_updates, before)
        self._loss_tracker.update_state(out.loss, sample_weight=_num_rows(x))
        num_known_rows = _first_tensor(x).shape[0]  # None: by batches, as Keras does
        for metric in self._compile_loss.metrics if self._compile_loss else []:
            metric.update_state(out.metrics[metric.name], sample_weight=num_known_rows)
        return out.outputs

    def _train_on_whole_batch(self, x, y, sample_weight, reason):
        self._warn_of_order(reason)
        optimizer, variables = self._built_optimizer(), self.pipe.trainable_variables
        before = self._values_to_restore()
        scale = training_optimizer.scale_of(optimizer)
        with tf.GradientTape() as tape:
            outputs = self(x, training=True)
            loss = self._on_last_device(self._compute_loss, x, y, outputs, sample_weight)
            self._loss_tracker.update_state(loss, sample_weight=_num_rows(x))
            scaled = loss if scale is None else loss * scale
        leaves = [leaf for leaf in tf.nest.flatten(outputs) if leaf is not None]
        logits = [getattr(leaf, '_keras_logits', leaf) for leaf in leaves]  # which Keras's cross-entropies read instead
        gradients = self._reached(tape.gradient(scaled, [variables, leaves, logits]), variables)
        if scale is not None:
            gradients = [None if gradient is None else device_placement.times(gradient, 1.0 / scale)
                         for gradient in gradients]
        is_finite = tf.reduce_all(
            [tf.reduce_all(tf.math.is_finite(gradient)) for gradient in gradients if gradient is not None])
        self._update(gradients, is_finite, [], before)
        return outputs

    def _reached(self, gradients, variables):
        """Return the gradients, with None for variables that no loss depends on."""
        of_variables, *of_outputs = gradients
        if self.pipe._get_own_losses():  # they may reach any variable
            return of_variables
        is_read = [any(gradient is not None for gradient in pair) for pair in zip(*of_outputs)]
        symbols = getattr(self.pipe.model, 'outputs', None) or []  # a model with a call of its own has none
        read = [symbol for symbol, reaches in zip(symbols, is_read) if reaches]
        if len(read) in (0, len(is_read)):
            return of_variables
        behind = {id(variable) for variable in keras.Model(self.pipe.model.inputs, read).trainable_variables}
        return [gradient if id(variable) in behind or variable.regularizer else None  # None: no weight decay
                for gradient, variable in zip(of_variables, variables)]

    def _loss_in_pipeline(self, x, y, sample_weight, structure):
        """Return the loss function that the last partition calls."""
        own = [name for name in ('call', 'compute_loss') if self._overrides(name)]
        if own:
            raise compiled_loss.NotAdditive(f'{type(self).__name__} overrides {own[0]}')
        if self._compile_loss is None:
            return compiled_loss.no_loss
        given = keras.tree.map_structure(model_surface.symbol_of_any_batch, (y, sample_weight))
        key = repr((structure, micro_batches.specs_of_tensors(given)))  # the kind of a loss may depend on the ranks
        if key not in self._kept.losses:
            symbols = (given[0], self._symbolic_outputs(x), given[1])
            with base_layer.outside_of_scopes():
                if not self._compile_loss.built:
                    self._build_losses(*symbols)
                kinds = compiled_loss.kinds_of(self._compile_loss, *symbols, self.variables)
            self._kept.losses[key] = compiled_loss.CompiledLoss(self._compile_loss, structure, kinds)
        return self._kept.losses[key]  # the same object for equal keys, so that traces are reused

    def _build_losses(self, *symbols):
        try:
            keras_backend.compute_output_spec(self._compile_loss, *symbols)
        # A loss in NumPy takes no symbolic tensors; on the whole batch it works, or fails with its own error.
        except Exception as error:
            raise compiled_loss.NotAdditive(f'A loss could not be traced ({type(error).__name__})') from error

    def _symbolic_outputs(self, x):
        if any(leaf is None for leaf in keras.tree.flatten(x)):  # an optional input, which has no symbolic tensor
            return self.pipe.pack_outputs(self.outputs)
        return self.pipe.compute_output_spec(keras.tree.map_structure(model_surface.symbol_of_any_batch, x))

    def _warn_of_order(self, reason):
        schedule = self.pipe.params.schedule
        if schedule != 'gpipe':
            warnings.warn(f'{reason}, so it is computed on the whole batch, after all forward actions: the pipeline '
                          f'runs in the order of GPipe, not in that of schedule={schedule!r}.', stacklevel=2)

    def _overrides(self, name):
        return getattr(type(self), name) is not getattr(PipelineModel, name)

    def _require_some_loss(self):
        adds_losses = any(stage.adds_losses for stage in self.pipe.stages)
        if self._compile_loss is None and not adds_losses and not self.losses:
            raise ValueError('The model has no loss, and no layer of it adds one. Give one to compile(loss=...).')

    def _built_optimizer(self):
        variables = self.pipe.trainable_variables
        self._refuse_weights_outside(variables)
        if variables and not self.optimizer.built:
            with base_layer.outside_of_scopes():
                self.optimizer.build(variables)
        return self.optimizer

    def _values_to_restore(self):
        """Return (variable, value) pairs to restore after a float16 overflow, or [] without loss scaling."""
        if not training_optimizer.is_scaling(self._built_optimizer()):
            return []
        return [(variable, variable_placement.read_variable(variable)) for variable in self.pipe.variables]

    def _update(self, gradients, is_finite, state_updates, before):
        """Update weights and state, except after an overflow from loss scaling."""
        variables, optimizer = self.pipe.trainable_variables, self.optimizer

        def update():
            variable_placement.assign(state_updates)  # before weights that layers assign themselves get their update
            if not variables:
                warnings.warn('The model does not have any trainable weights.', stacklevel=2)
            elif training_optimizer.is_scaling(optimizer):
                optimizer.inner_optimizer.apply(gradients, variables)
            else:
                optimizer.apply_gradients(zip(gradients, variables))

        if variables and training_optimizer.is_scaling(optimizer):
            training_optimizer.update_if_finite(optimizer, is_finite, update, lambda: variable_placement.assign(before))
        else:
            update()

    def _on_last_device(self, function, *arguments):
        with tf.device(self.pipe.stages[-1].device):
            return function(*arguments)

    def _refuse_weights_outside(self, variables):
        """Raise ValueError if Keras and the pipeline would train different weights."""
        known = set(map(id, variables))
        own = [variable.path for variable in self.trainable_variables if id(variable) not in known]
        if own:
            raise ValueError(f'{type(self).__name__} has {own[:3]}, weights that no layer of its pipeline has, and '
                             'that would not be trained. Put them into one of its layers, or set trainable=False.')
        frozen = next((model for model in (self, self.source) if model is not None and not model.trainable), None)
        if frozen and variables:
            raise ValueError(f'{frozen.name!r} has trainable=False, so that Keras would train nothing, but '
                             f'{variables[0].path!r} is trainable. Set trainable of its layer to False too, or of the '
                             'model to True.')

    def _refuse_new_weights(self):
        """Raise ValueError for trainable weights that the optimizer does not know."""
        optimizer = self.optimizer
        if optimizer is None or not optimizer.built or isinstance(optimizer, keras.optimizers.MultiOptimizer):
            return
        known = set(map(id, training_optimizer.unscaled(optimizer)._trainable_variables))
        new = [variable.path for variable in self.pipe.trainable_variables if id(variable) not in known]
        if new:  # Keras would use an older trace, which does not train them
            raise ValueError(f'Weights are trained that the optimizer does not know, such as {new[0]!r}: by '
                             'enable_lora, or because they were frozen before. Call compile with a new optimizer.')

    def _refuse_overridden_steps(self):
        replaced = _PREPROCESSING if _preprocesses(self.source) else ()
        own = [] if self.source is None else [
            name for name in (*_STEPS, *_PROPERTIES)
            if getattr(type(self.source), name) is not getattr(keras.Model, name) and name not in replaced]
        if own:
            advice = ('Put what they do into its layers, as by add_loss.' if set(own) & set(_PROPERTIES) else
                      'Override the same methods in a subclass of PipelineModel.')
            raise ValueError(
                f'Model {self.source.name!r} of class {type(self.source).__name__} overrides {own}, which a '
                f'PipelineModel does not call. {advice}')

    def _with_loss_scale(self, optimizer, auto_scale_loss):
        """Return an optimizer that scales the loss if a layer uses float16."""
        # Keras checks only the model's policy.
        if auto_scale_loss and self.pipe.computes_in_float16 and not training_optimizer.is_scaling(optimizer):
            return keras.optimizers.LossScaleOptimizer(optimizer)
        return optimizer


def _preprocesses(source):
    """Return whether a model is a KerasHub task."""
    return hasattr(source, 'preprocess_samples') and hasattr(source, 'preprocessor')


def _run_plain(function: Callable, *arguments: Any) -> Any:
    first, *others = gc.get_threshold()
    # The first call creates millions of objects, most of which stay, and garbage collection takes a tenth of its time.
    rises = 0 < first < _OBJECTS_BETWEEN_COLLECTIONS  # not if another thread has raised it
    if rises:
        gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS, *others)
    try:
        with device_kinds.without_graph_optimizer(), patches.telling_what_failed_first():
            return patches.call_with_room_for_frames(lambda: function(*arguments))
    finally:
        if rises:
            gc.set_threshold(first, *others)


def _num_rows(x):
    return tf.shape(_first_tensor(x))[0]


def _first_tensor(x):
    return next(leaf for leaf in tf.nest.flatten(x) if leaf is not None)


keras.saving.get_custom_objects()['PipelineModel'] = PipelineModel  # .h5 files name classes without their package
