"""The pipeline under test, run in each way that a user can, and the places where its variables and actions are."""

import functools

import keras
import tensorflow as tf

import lingpipe
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
    zeros_for_none,
)


class PipelinedModel:
    """A Keras model as a pipeline."""

    def __init__(self, model, fields, optimizer=None, second=None):
        self.model, self._optimizer, self._second_fields, self._second = model, optimizer, second, None
        self._pipe = lingpipe.GPipeLayer.from_keras(model, random_seed=7, **fields)
        self._function, self._fitted = None, None

    def outputs(self, x):
        """Return the outputs of a batch in inference."""
        if self._fitted is None:
            return self._pipe(x)
        return self._fitted.predict(x, batch_size=len(tf.nest.flatten(x)[0]), verbose=0)

    def value_and_grad(self, data):
        """Return the `Step` of a batch, called eagerly."""
        out = self._pipe.value_and_grad(data.loss, data.x, data.y, data.sample_weight, return_outputs=True)
        return Step(float(out.loss), as_arrays(out.outputs), as_arrays(out.gradients), [])

    def in_function(self, data, has_open_rows=False):
        """Return the `Step` of a batch, called in a `tf.function` of the user's that may not know the number of
        rows."""
        nest = as_tensors((data.x, data.y, data.sample_weight))
        tensors = [leaf for leaf in tf.nest.flatten(nest) if leaf is not None]
        if self._function is None:
            call = functools.partial(self._call_in_function, data.loss, nest)
            specs = [_spec_of(tensor, has_open_rows) for tensor in tensors]
            self._function = tf.function(call, autograph=False, input_signature=specs)
        loss, outputs, gradients = self._function(*tensors)
        return Step(float(loss), as_arrays(outputs), as_arrays(gradients), [])

    def under_tape(self, data):
        """Return the `Step` of a batch where the loss lies outside of the pipeline; what layers add is added there."""
        x = as_tensors(data.x)
        floats = floats_of(x)
        with tf.GradientTape() as tape:
            tape.watch(floats)
            outputs = self._pipe(x, training=True)
            parts = [data.total(data.y, outputs, data.sample_weight), *self._pipe.losses]
            loss = tf.add_n([tf.cast(part, keras.config.floatx()) for part in parts])
        variables = [variable.value for variable in self._pipe.trainable_variables]
        gradients, of_inputs = tape.gradient(loss, [variables, floats])
        return Step(
            float(loss), as_arrays(outputs), zeros_for_none(gradients, variables), zeros_for_none(of_inputs, floats))

    def outputs_of_whole_batch(self, x):
        """Return the outputs of a batch in inference."""
        return self.outputs(x)

    def predict_source(self, data):
        """Return what the source predicts by itself."""
        return observed.predicted(self.model, data)

    def second_pipeline(self, data):
        """Return the outputs of another pipeline over the same layers, in inference."""
        if self._second is None:
            self._second = lingpipe.GPipeLayer.from_keras(self.model, random_seed=7, **self._second_fields)
        return as_arrays(self._second(data.x))

    def draws_anew(self, data, training):
        """Return whether calls, and micro-batches, of equal rows come out different: a pair of booleans."""
        data = repeated(data)
        run = (lambda: self.value_and_grad(data).outputs) if training else (lambda: self.outputs(data.x))
        return are_different(run, self._pipe.params.num_micro_batches * self._pipe.params.num_replicas)

    def fit(self, data, compiled, batch_size, num_epochs):
        """Return what `PipelineModel.fit` and `evaluate` leave behind, as `Fitted`."""
        model = self._fitted
        if model is None:
            model = lingpipe.PipelineModel(self._pipe)
            model.compile(self._optimizer, data.loss, **compiled)
        history = model.fit(data.x, data.y, sample_weight=data.sample_weight, batch_size=batch_size, epochs=num_epochs,
                            shuffle=False, verbose=0).history
        evaluation = model.evaluate(
            data.x, data.y, batch_size, sample_weight=data.sample_weight, verbose=0, return_dict=True)
        self._fitted, has_short_batch = model, len(tf.nest.flatten(data.x)[0]) % batch_size
        return Fitted(comparable(history, has_short_batch), as_arrays(model.optimizer.variables),
                      comparable(evaluation, has_short_batch))

    def misplaced(self):
        """Return a sentence about a variable that is on a wrong device; None where there is none."""
        if self._second is not None:  # its variables are where the other pipeline has them
            return None
        wanted = {}
        for stage in self._pipe.stages:
            for variable in (variable for layer in stage.layers for variable in layer.variables):
                if variable.name != 'seed_generator_state':
                    wanted.setdefault(id(variable), (variable, stage.index))
        for variable, index in wanted.values():
            if not _is_on(variable.value.device, self._devices(index)):
                return f'variable {variable.path} is on {variable.value.device}, its partition on {self._devices(index)}'
        return None

    def _call_in_function(self, loss, nest, *tensors):
        remaining = iter(tensors)
        x, y, sample_weight = tf.nest.map_structure(lambda leaf: None if leaf is None else next(remaining), nest)
        out = self._pipe.value_and_grad(loss, x, y, sample_weight, return_outputs=True)
        return out.loss, out.outputs, out.gradients

    def _devices(self, index):
        """Return the devices of a stage, one a replica."""
        return [replica[index].device for replica in self._pipe.replicas]


def _is_on(device, devices):
    return device.endswith(tuple(other.split('/')[-1].removeprefix('device:') for other in devices))


def _spec_of(tensor, has_open_rows):
    return tf.TensorSpec([None, *tensor.shape[1:]] if has_open_rows else tensor.shape, tensor.dtype)
