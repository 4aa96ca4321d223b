"""A pipelined model with the layers, names, weights and files of the plain model."""

import contextlib
import os
from typing import Any, Self

import keras
import tensorflow as tf

from lingpipe.keras_graph import lora
from lingpipe.pipeline import gpipe_layer, validation
from lingpipe.private_api import Functional, tracking
from lingpipe.stages import micro_batches


def _of_source(name, words):
    """Return a property that reads an attribute of the source model."""

    def read(self):
        if self.source is None:
            raise AttributeError(
                f'{self.name!r} has no attribute {name!r}: its pipeline is made of Params, which say nothing of '
                'inputs. Make it of a Keras model by GPipeLayer.from_keras.')
        return getattr(self.source, name)

    return property(read, doc=words)


class ModelSurface(keras.Model):
    """A pipelined Keras model with the same layers, names and weight files as the plain model.

    ::

        plain model       layers ─┐
                                  ├─> the same layers, with the same names, order and places in a file
        pipelined model   layers ─┘
                          pipe   ───> how they are run; Keras does not track it, so nothing is tracked twice
    """

    def __init__(self, pipe: gpipe_layer.GPipeLayer, **kwargs: Any) -> None:
        if not isinstance(pipe, gpipe_layer.GPipeLayer):
            raise TypeError(
                f'PipelineModel was given a {type(pipe).__name__}, but takes a GPipeLayer. '
                'Make one of a Keras model by GPipeLayer.from_keras(model, num_partitions=2).')
        validation.refuse_strategies(pipe.name)
        source = getattr(pipe, 'model', None)
        super().__init__(autocast=False, **{'name': getattr(source, 'name', None), **kwargs})
        with tracking.DotNotTrackScope():
            self.pipe = pipe
        self._layers.extend(
            pipe.stack if source is None else source._flatten_layers(include_self=False, recursive=False))
        self._input_specs = None
        self.built = pipe.built

    inputs = _of_source('inputs', 'List of the symbolic inputs of the source model.')
    outputs = _of_source('outputs', 'List of the symbolic outputs of the source model.')
    input_shape = _of_source('input_shape', 'Shapes of the inputs of the source model.')
    output_shape = _of_source('output_shape', 'Shapes of the outputs of the source model.')
    operations = _of_source('operations', 'List of the layers and operations of the source model.')

    @property
    def source(self) -> Any:
        """The Keras model that the pipeline was made from, or None."""
        return getattr(self.pipe, 'model', None)

    @property
    def layers(self) -> list:
        """The list of layers; see `keras.Model.layers`."""
        return super().layers if self.source is None else self.source.layers

    @property
    def input(self) -> Any:
        """The symbolic inputs; see `keras.Model.input`."""
        return self.source.input if isinstance(self.source, Functional) else super().input

    @property
    def output(self) -> Any:
        """The symbolic outputs; see `keras.Model.output`."""
        return self.source.output if isinstance(self.source, Functional) else super().output

    @property
    def output_names(self) -> Any:
        """The output names of the source model, or None."""
        return getattr(self.source, 'output_names', None)  # losses and metrics may use these names

    @property
    def input_spec(self) -> Any:
        """The input specs of the source model, or None."""
        return getattr(self.source, 'input_spec', None)  # Keras checks inputs against these specs

    @property
    def metrics(self) -> list[keras.Metric]:
        """The metrics of the model, then the metrics of the layers."""
        layers = [layer for layer in self._flatten_layers(include_self=False) if not isinstance(layer, keras.Model)]
        found = self._get_own_metrics() + [metric for layer in layers for metric in layer.metrics]
        return list({id(metric): metric for metric in found}.values())

    @property
    def losses(self) -> list[tf.Tensor]:
        """The losses from the last call, then the penalties of the weights."""
        penalties = self._get_own_losses()
        for variable in self.trainable_variables:
            if variable.regularizer is not None:
                value = variable.value
                with tf.device(getattr(value, 'device', None)):
                    penalties.append(variable.regularizer(value))
        return penalties

    def summary(self, *args: Any, **kwargs: Any) -> None:
        """Print the layers and their connections; see `keras.Model.summary`."""
        show = super().summary if self.source is None else self.source.summary
        show(*args, **kwargs)

    def compute_output_spec(self, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        """Return the nest of symbolic outputs `[batch, ...]`, without running the layers."""
        return self.pipe.compute_output_spec(inputs, training=bool(training))

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return the shapes of the outputs."""
        return self.pipe.compute_output_shape(input_shape)

    def export(self, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        """Export the plain model; see `keras.Model.export`.

        The exported model runs on one device, without LingPipe. LoRA is merged into the kernels, as in `save`.
        """
        with lora.merged(self):
            return self._plain_model().export(filepath, *args, **kwargs)

    def save(self, filepath: Any, overwrite: bool = True, zipped: Any = None, include_optimizer: bool = True) -> None:
        """Save this model, including its pipeline; see `keras.Model.save`."""
        with lora.merged(self):
            super().save(filepath, overwrite, zipped, include_optimizer=include_optimizer)

    def save_weights(self, filepath: Any, overwrite: bool = True, max_shard_size: Any = None) -> None:
        """Save the weights; see `keras.Model.save_weights`. The plain model can load them."""
        path = str(filepath)
        if not overwrite or max_shard_size is not None or '://' in path or not path.endswith('.weights.h5'):
            with lora.merged(self):
                super().save_weights(filepath, overwrite, max_shard_size)
            return
        # A crash must not leave a partial file, from which `BackupAndRestore` could not continue.
        new = os.path.join(os.path.dirname(path), f'new_{os.path.basename(path)}')
        try:
            with lora.merged(self):
                super().save_weights(new)
            os.replace(new, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.remove(new)

    def load_weights(self, filepath: Any, skip_mismatch: bool = False, objects_to_skip: Any = None) -> None:
        """Load weights; see `keras.Model.load_weights`. This resets the LoRA updates to zero."""
        with lora.able_to_learn(self):
            super().load_weights(filepath, skip_mismatch, objects_to_skip=objects_to_skip)

    def get_config(self) -> dict[str, Any]:
        """Return the name, the pipeline and the input specs.

        Raises:
            ValueError: the input specs are needed, but the model has not seen inputs yet.
        """
        if self.built and self.source is None:
            self._require_input_specs()
        return {'name': self.name, 'pipe': keras.saving.serialize_keras_object(self.pipe),
                'input_specs': keras.saving.serialize_keras_object(self._input_specs)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Make a model from the result of `get_config`."""
        model = cls(keras.saving.deserialize_keras_object(config['pipe']), name=config['name'])
        specs = keras.saving.deserialize_keras_object(config['input_specs'])
        if specs is not None:
            model._build_for(specs)
        return model

    def _trackable_children(self, save_type='checkpoint', **kwargs):
        """Return the named objects to save; in a checkpoint, they include the objects of the plain model."""
        children = super()._trackable_children(save_type, **kwargs)
        if self.source is None or save_type != 'checkpoint':
            return children
        return {**self.source._trackable_children(save_type), **children}  # the plain model can load such checkpoints

    def _obj_type(self):
        """Return the model type, by which Keras decides how to save the layers."""
        return 'Functional'  # as for the plain model: then either model can load the other's weights

    def _plain_model(self):
        if self.source is not None:
            return self.source
        self._require_input_specs()
        inputs = keras.tree.map_structure(lambda spec: keras.Input(spec.shape[1:], dtype=spec.dtype), self._input_specs)
        outputs = inputs
        for layer in self.pipe.stack:
            outputs = layer(outputs)
        return keras.Model(inputs, outputs, name=self.name)

    def _require_input_specs(self):
        if self._input_specs is None:
            raise ValueError(f'{self.name!r} does not know the shape of its inputs yet. Call it on a batch first.')

    def _build_for(self, inputs):
        """Create the weights if they do not exist yet."""
        if self.source is None and any(isinstance(leaf, (tf.SparseTensor, tf.RaggedTensor))
                                       for leaf in tf.nest.flatten(inputs)):
            raise ValueError(
                f'{self.name!r} was given a sparse or ragged tensor, but micro-batches are cut out of dense ones. Make '
                'it dense by tf.sparse.to_dense, or by its to_tensor().')
        if self._input_specs is None:
            self._input_specs = keras.tree.map_structure(symbol_of_any_batch, inputs)
        if not self.pipe.built:
            self.pipe.build_from_specs(micro_batches.specs_of_tensors(self._input_specs))
        self.pipe.place_new_weights()
        self.built = True


def symbol_of_any_batch(tensor: Any) -> keras.KerasTensor | None:
    """Return a `keras.KerasTensor` like `tensor`, but for any number of rows. Return None for None."""
    if tensor is None:
        return None
    return keras.KerasTensor(
        (None, *tensor.shape[1:]) if len(tensor.shape) else (), keras.backend.standardize_dtype(tensor.dtype))
