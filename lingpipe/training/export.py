"""Writing a trained model for those who do not use LingPipe."""

import types

import keras
import tensorflow as tf

from lingpipe.layers import base_layer
from lingpipe.partition import layer_analysis
from lingpipe.training import checkpoints, experiment
from lingpipe.training import logdir as logdirs


class Exporter:
    """Builds a task's layers as one plain Keras model on one device, with the weights of a checkpoint.

    ::

        logdir/train/ckpt-* ─> keras.Model(layers of the body) ─┬─> logdir/export/model.keras    Keras; stock layers need no LingPipe
                                                                └─> logdir/export/saved_model/   TensorFlow Serving, tf.saved_model

    Args:
        params: the experiment's Params with `task` and `input`.
        logdir: folder of the run.

    Raises:
        TrainingError: when there is no such folder.
    """

    def __init__(self, params, logdir):
        self._logdir = logdirs.LogDir(logdir)
        self._logdir.require()
        self._input_spec = params.input.cls.InputSpec(params.input)
        body = experiment.body_params(params)
        self._body = types.SimpleNamespace(
            stack=[p.Instantiate() for p in layer_analysis.named_layer_params(body.layers, body.dtype_policy)])
        base_layer.tie_layers(self._body.stack)
        self._model = self._build(params.task.name or 'model')

    def run(self, path=None):
        """Writes the model of one checkpoint, with moving averages in place of weights where the checkpoint holds them.

        Args:
            path: path of a checkpoint; None takes the newest of the run that is whole.

        Returns:
            Pair of the paths of the Keras file and of the SavedModel.

        Raises:
            TrainingError: when there is no checkpoint, or it cannot be read.
        """
        step = checkpoints.WeightReader(self._body).restore_chosen(path, self._logdir.train)
        folder = tf.io.gfile.join(self._logdir.path, 'export')
        tf.io.gfile.makedirs(folder)
        keras_path, saved_model_path = (tf.io.gfile.join(folder, name) for name in ('model.keras', 'saved_model'))
        self._model.save(keras_path)
        self._model.export(saved_model_path, verbose=False)
        print(f'step {step}: {keras_path} ({self._needed()}), {saved_model_path}', flush=True)
        return keras_path, saved_model_path

    def _build(self, name):
        inputs = outputs = _keras_inputs(self._input_spec)
        for layer in self._body.stack:
            outputs = layer(outputs)
        return keras.Model(inputs, outputs, name=name)

    def _needed(self):
        foreign = sorted({type(layer).__name__ for layer in self._body.stack if not type(layer).__module__.startswith('keras.')})
        return f'loads where {", ".join(foreign)} can be imported' if foreign else 'loads with Keras alone'


def _keras_inputs(specs, name='inputs'):
    """Returns the Keras inputs of a model whose own input is one tensor, or a dictionary of them."""
    if isinstance(specs, dict):
        return {key: _keras_inputs(spec, key) for key, spec in specs.items()}
    return keras.Input(specs.shape[1:], dtype=specs.dtype.name, name=name)
