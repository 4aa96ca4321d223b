"""A pipeline as a Keras model: compile, fit, evaluate, predict and save, with every schedule."""

import keras
import tensorflow as tf
from keras.src import backend

from lingpipe.models import compiled_loss, loss_weights
from lingpipe.optimizers import device_placement, loss_scaling
from lingpipe.pipeline import (
    gpipe_layer,
    keras_pipeline,  # noqa: F401  a saved model may hold one
    variable_values,
)


@keras.saving.register_keras_serializable(package='lingpipe')
class PipelineModel(keras.Model):
    """Trains a pipeline by Keras's own `fit`, with the results of `fit` on the plain model.

    The loss is computed inside the last partition, so the schedule of the pipeline holds in training; called as a layer, a
    pipeline always runs GPipe's. The optimizer that `compile` is given works on the device of each variable::

        model = lingpipe.PipelineModel(pipe)
        model.compile('adam', 'sparse_categorical_crossentropy', metrics=['accuracy'])
        model.fit(x, y, batch_size=64, epochs=3, validation_data=(x_test, y_test))

    A subclass that overrides `compute_loss` changes `evaluate` only.

    Args:
        pipe: a `GPipeLayer`, made from Params or by `GPipeLayer.from_keras`.
        **kwargs: `name` and other arguments of `keras.Model`.
    """

    def __init__(self, pipe, **kwargs):
        if not isinstance(pipe, gpipe_layer.GPipeLayer):
            raise TypeError(
                f'PipelineModel was given a {type(pipe).__name__}, but takes a GPipeLayer. '
                'Make one of a Keras model by GPipeLayer.from_keras(model, num_partitions=2).')
        super().__init__(autocast=False, **kwargs)
        self.pipe = pipe
        self.built = pipe.built
        self._input_specs = None
        self._losses_in_pipeline = {}
        self._added_losses = []

    @property
    def output_names(self):
        """Names of the outputs, by which losses and metrics may be given; those of the source model."""
        source = getattr(self.pipe, 'model', None)
        return getattr(source, 'output_names', None)

    @property
    def losses(self):
        """Weight regularisers, each computed where its variable lives, and in `test_step` the losses that layers add."""
        penalties = list(self._added_losses)
        for variable in self.trainable_variables:
            if variable.regularizer is not None:
                with tf.device(variable.value.device):
                    penalties.append(variable.regularizer(variable.value))
        return penalties

    def compile(self, optimizer='rmsprop', loss=None, loss_weights=None, metrics=None, *, run_eagerly=False,
                jit_compile=False, **arguments):
        """Configures training, as `keras.Model.compile` does.

        Args:
            optimizer: Keras optimizer; it is changed to work on the device of each variable, with the same results.
            loss: loss, or list or dictionary of losses, one an output.
            loss_weights: list or dictionary of numbers, one a loss.
            metrics: list or dictionary of metrics.
            run_eagerly: must be False.
            jit_compile: must be False, or 'auto', which means the same.
            **arguments: other arguments of `keras.Model.compile`.

        Raises:
            ValueError: an argument cannot work with a pipeline.
        """
        self._refuse(run_eagerly, jit_compile)
        optimizer = self._with_loss_scale(keras.optimizers.get(optimizer), arguments.get('auto_scale_loss', True))
        device_placement.place(optimizer)
        self._losses_in_pipeline = {}
        arguments = {**arguments, 'run_eagerly': False, 'jit_compile': False, 'auto_scale_loss': False}
        super().compile(optimizer, loss, loss_weights, metrics, **arguments)

    def compile_from_config(self, config):
        """Compiles a loaded model as it was when it was saved."""
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.built:
            self.optimizer.build(self.trainable_variables)

    def __call__(self, inputs, *args, **kwargs):
        self._build_for(inputs)
        return super().__call__(inputs, *args, **kwargs)

    def call(self, inputs, training=False):
        """Runs the pipeline; see `GPipeLayer.call`."""
        return self.pipe(inputs, training=training)

    def compute_output_spec(self, inputs, training=False):
        return self.pipe.compute_output_spec(inputs, training=training)

    def train_step(self, data):
        """Trains on one batch, with the loss inside the last partition; see `keras.Model.train_step`."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        self._build_for(x)
        num_rows = _num_rows(x)
        targets, structure = compiled_loss.pack_targets(y, sample_weight, num_rows)
        loss = self._loss_in_pipeline(x, y, sample_weight, structure)
        out = self.pipe.value_and_grad(
            loss, x, self._on_last_device(self._with_shares, loss, x, targets), return_outputs=self._compile_metrics is not None,
            assign_state=False, loss_scale=loss_scaling.scale_of(self._built_optimizer()))
        self._require_some_loss()
        self._update(out)
        self._loss_tracker.update_state(out.loss, sample_weight=num_rows)
        num_known_rows = next(leaf for leaf in tf.nest.flatten(x) if leaf is not None).shape[0]  # None: as Keras, by batches
        for metric in self._compile_loss.metrics if self._compile_loss else []:
            metric.update_state(out.metrics[metric.name], sample_weight=num_known_rows)
        return self._on_last_device(self.compute_metrics, x, y, out.outputs, sample_weight)

    def test_step(self, data):
        """Evaluates one batch; see `keras.Model.test_step`."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        self._build_for(x)
        outputs, added_losses = self.pipe.outputs_and_added_losses(x)
        return self._on_last_device(self._evaluate, x, y, outputs, sample_weight, added_losses)

    def _evaluate(self, x, y, outputs, sample_weight, added_losses):
        self._added_losses = added_losses
        try:
            loss = self._compute_loss(x, y, outputs, sample_weight, training=False)
        finally:
            self._added_losses = []
        self._loss_tracker.update_state(loss, sample_weight=_num_rows(x))
        return self.compute_metrics(x, y, outputs, sample_weight)

    def get_config(self):
        """Returns the pipeline and the specs of its inputs, from which a loaded model creates its weights.

        Raises:
            ValueError: the pipeline was built before it became a model, which so has not seen any inputs yet.
        """
        is_from_keras = isinstance(self.pipe, keras_pipeline.KerasPipeline)
        if self.built and self._input_specs is None and not is_from_keras:
            raise ValueError(f'{self.name!r} does not know the shape of its inputs yet. Call it on a batch before it is saved.')
        return {'name': self.name, 'pipe': keras.saving.serialize_keras_object(self.pipe),
                'input_specs': keras.saving.serialize_keras_object(self._input_specs)}

    @classmethod
    def from_config(cls, config):
        model = cls(keras.saving.deserialize_keras_object(config['pipe']), name=config['name'])
        specs = keras.saving.deserialize_keras_object(config['input_specs'])
        if specs is not None:
            model._build_for(specs)
        return model

    def save_own_variables(self, store):
        """Keras saves no seeds; with this one, drop-out goes on where it was."""
        store['seed'] = self.pipe._seed_generator.state.numpy()

    def load_own_variables(self, store):
        self.pipe._seed_generator.state.assign(store['seed'])

    def _build_for(self, inputs):
        """Creates the weights outside of any function that is being traced."""
        if self._input_specs is None:
            self._input_specs = keras.tree.map_structure(_symbol_of_any_batch, inputs)
        if not self.pipe.built:
            self.pipe.build_from_specs(keras.tree.map_structure(_spec_of, self._input_specs))
        self.built = True

    def _loss_in_pipeline(self, x, y, sample_weight, structure):
        """Returns the same function each time, since the pipeline keeps what it has traced by it."""
        if self._compile_loss is None:
            return compiled_loss.no_loss
        if not self._compile_loss.built:
            outputs = self.pipe.compute_output_spec(keras.tree.map_structure(_symbol_of, x))
            backend.compute_output_spec(
                self._compile_loss, *keras.tree.map_structure(_symbol_of, (y, outputs, sample_weight)))
        return self._losses_in_pipeline.setdefault(
            repr(structure), compiled_loss.CompiledLoss(self._compile_loss, structure))

    def _with_shares(self, loss, x, targets):
        """Several losses need their weights in the whole mini-batch, which the last partition sees one part of at a time."""
        if self._compile_loss is None or loss.num_losses == 1:
            return targets
        weights = loss_weights.weights_of_batch(self.pipe, loss, x, targets)
        return targets if weights is None else compiled_loss.with_shares(targets, weights)

    def _require_some_loss(self):
        adds_losses = any(stage.adds_losses for stage in self.pipe.stages)
        if self._compile_loss is None and not adds_losses and not self.losses:
            raise ValueError('The model has no loss, and no layer of it adds one. Give one to compile(loss=...).')

    def _built_optimizer(self):
        variables = self.pipe.trainable_variables
        if variables and not self.optimizer.built:
            with tf.init_scope():
                self.optimizer.build(variables)
        return self.optimizer

    def _update(self, out):
        """Updates weights and state; with a scaled loss only where everything is finite, and moving statistics as little."""
        def update():
            variable_values.assign(out.state_updates)  # before weights that layers assign themselves get their update
            loss_scaling.unscaled(self.optimizer).apply(out.gradients, self.pipe.trainable_variables)

        if loss_scaling.is_scaling(self.optimizer):
            is_finite = tf.math.is_finite(out.loss) & tf.math.is_finite(out.squared_norm)
            loss_scaling.update_if_finite(self.optimizer, is_finite, update)
        else:
            update()

    def _on_last_device(self, function, *arguments):
        with tf.device(self.pipe.stages[-1].device):
            return function(*arguments)

    def _refuse(self, run_eagerly, jit_compile):
        if run_eagerly:
            raise ValueError('run_eagerly=True was given, but eagerly no two partitions would overlap. Leave it False, and '
                             'debug the source model eagerly.')
        if jit_compile not in (False, 'auto'):
            raise ValueError(f'jit_compile={jit_compile!r} would compile all partitions for one device. Leave it False.')

    def _with_loss_scale(self, optimizer, auto_scale_loss):
        """Keras's own `compile` goes by the policy of the model; what counts is that of the layers."""
        if auto_scale_loss and self.pipe.computes_in_float16 and not loss_scaling.is_scaling(optimizer):
            return keras.optimizers.LossScaleOptimizer(optimizer)
        return optimizer


def _num_rows(x):
    return tf.shape(next(leaf for leaf in tf.nest.flatten(x) if leaf is not None))[0]


def _symbol_of(tensor):
    return None if tensor is None else keras.KerasTensor(tensor.shape, keras.backend.standardize_dtype(tensor.dtype))


def _symbol_of_any_batch(tensor):
    return keras.KerasTensor((None, *tensor.shape[1:]), keras.backend.standardize_dtype(tensor.dtype))


def _spec_of(symbol):
    return tf.TensorSpec(symbol.shape, symbol.dtype)
