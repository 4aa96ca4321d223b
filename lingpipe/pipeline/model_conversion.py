"""Conversion of a Keras model to a pipeline and back, and saving."""

import tempfile
from typing import Any, Self

import keras
import tensorflow as tf

from lingpipe import hyperparams
from lingpipe.devices import variable_placement
from lingpipe.keras_graph import hub_model, lora
from lingpipe.layers import base_layer
from lingpipe.pipeline import arguments, layer_sources


class ModelConversion(base_layer.BaseLayer):
    """The part of `GPipeLayer` that works with whole Keras models."""

    model: Any
    stages: Any
    build_from_specs: Any
    source: Any
    stack: Any
    _seed_generator: Any

    @classmethod
    def from_keras(cls, model: keras.Model, **fields: Any) -> Self:
        """Make a built pipeline of a Keras model, which keeps using the same weights.

        Args:
            model: built Sequential or Functional `keras.Model`; branches, skips, shared layers, nested models and
                several inputs and outputs are allowed. Its variables move to the devices of their partitions.
            **fields: fields of `Params()` but `layers`; those that need the size of a batch (partition_by='time',
                memory_limit) require `batch_size`, unless the model's inputs have one. By default 'auto' chooses
                num_partitions, num_micro_batches, schedule and recompute; see `GPipeLayer`.

        Raises:
            ValueError: the model cannot be cut; the message names the layer.
        """
        return cls._of_model(model, cls.Params().Set(**{**arguments.DEFAULTS, **fields}))

    @classmethod
    def from_preset(cls, preset: str, head: str = 'causal_lm', head_arguments: dict[str, Any] | None = None,
                    lora_rank: int | None = None, lora_layers: list[str] | None = None, preprocessor: Any = 'preset',
                    **fields: Any) -> Self:
        """Make a built pipeline of a KerasHub model, and load its weights tensor by tensor to their partitions.

        Args:
            preset: folder of a preset, or a name such as 'gpt2_base_en' or 'hf://USER/MODEL'.
            head: what the model is for, such as 'causal_lm' or 'text_classifier'; see `hub_model.HEADS`.
            head_arguments: arguments of the head, such as `{'num_classes': 2}`.
            lora_rank: rank of LoRA, which freezes the backbone itself; None: no LoRA.
            lora_layers: regular expressions of the paths of layers with LoRA, such as '.*/query'; None: KerasHub's
                choice, queries and values.
            preprocessor: preprocessor of KerasHub, with which `PipelineModel` takes raw texts or images; 'preset': the
                preset's own, if it has one; None: the model takes tensors.
            **fields: fields of `Params()`, as for `from_keras`.

        Raises:
            ValueError: the preset cannot be loaded, or the model cannot be cut.
        """
        model = hub_model.KerasHubModel.Params().Set(
            preset=preset, head=head, head_arguments=head_arguments or {}, lora_rank=lora_rank,
            lora_layers=lora_layers)
        params = cls.Params().Set(model=model, **{**arguments.DEFAULTS, **fields})
        source = layer_sources.of_model_params(params)
        pipe = cls._of_source(params, source)
        if preprocessor == 'preset':
            preprocessor = hub_model.preset_preprocessor(preset, source.model)
        if preprocessor is not None:
            source.model.preprocessor = preprocessor
        return pipe

    @classmethod
    def _of_model(cls, model: keras.Model, params: hyperparams.InstantiableParams) -> Self:
        _refuse_pipelines(model)
        source = layer_sources.LayersOfModel(model)
        source.validate(params)
        return cls._of_source(params.Copy(), source)

    @classmethod
    def _of_source(cls, params: hyperparams.InstantiableParams, source: layer_sources.LayersOfModel) -> Self:
        make: Any = cls  # `GPipeLayer`, which also takes a source
        pipe = make(params.Set(name=params.name or f'{source.model.name}_pipeline'), source)
        pipe.build_from_specs(source.input_specs)
        return pipe

    def get_config(self) -> dict[str, Any]:
        """Return the config from which `from_config` makes an equal pipeline: params, and the model or the layers."""
        if self.params.layers:
            return super().get_config()
        name, content = ('layers', self.stack) if self.model is None else ('model', self.model)
        return {name: keras.saving.serialize_keras_object(content), 'params': self.params.ToTextWithTypes()}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Make a pipeline from what `get_config` returned; Keras loads its weights afterwards."""
        if 'model' not in config and 'layers' not in config:
            return super().from_config(config)
        params = cls.Params().FromTextWithTypes(config['params'])
        if 'layers' in config:
            make: Any = cls
            return make(params, layer_sources.LayersOfList(keras.saving.deserialize_keras_object(config['layers'])))
        return cls._of_model(keras.saving.deserialize_keras_object(config['model']), params)

    def to_keras(self) -> keras.Model:
        """Make a plain Keras model with copies of the current weights, all on the device of the first partition.

        Low-rank parts (LoRA) are merged into the kernels that they are added to, except into quantized kernels, which
        could not hold the sum exactly.

        Raises:
            ValueError: the pipeline was made from Params, or the config of a layer does not recreate the layer.
        """
        device, model = self.stages[0].device, self.source.model
        if model is None:
            raise ValueError(f'{self.name!r} was made from Params, so there is no Keras model to copy. Make one of its '
                             'layers, pipe.stack, as by keras.Sequential.')
        return _plain_copy(model, device)

    def save_own_variables(self, store: Any) -> None:
        """Save the seed, which Keras does not save, so that dropout resumes where it stopped."""
        store['seed'] = self._seed_generator.state.numpy()

    def load_own_variables(self, store: Any) -> None:
        """Load the seed, which a file of the plain model lacks."""
        if 'seed' in store.keys():
            self._seed_generator.state.assign(store['seed'])


def _refuse_pipelines(model: keras.Model) -> None:
    layers = model._flatten_layers() if isinstance(model, keras.Model) else []  # pylint: disable=protected-access
    names = [layer.name for layer in layers
             if any(isinstance(part, ModelConversion) for part in (layer, getattr(layer, 'pipe', None)))]
    if names:
        raise ValueError(f'Layer {names[0]!r} of model {model.name!r} is a pipeline already. Make one pipeline of the '
                         'whole model, in which the model that this one was made of stands in its place.')


def _plain_copy(model: keras.Model, device: str) -> keras.Model:
    """Copy a model to one device, where Keras can use XLA for operations that need it, such as grouped convolutions."""
    pairs = []

    def clone(layer: keras.layers.Layer) -> keras.layers.Layer:
        with base_layer.default_policy(getattr(layer, 'dtype_policy', None)):  # of layers that its constructor makes
            pairs.append((layer, type(layer).from_config(layer.get_config())))
        return pairs[-1][1]

    with tf.init_scope(), variable_placement.creating_on(device), lora.merged(model):
        copy = keras.models.clone_model(model, clone_function=clone)
        _require_own_weights(model)
        for layer, copied in pairs:
            _copy_state(layer, copied)
        _require_shared_weights(pairs)
    return copy


def _copy_state(layer: keras.layers.Layer, copy: keras.layers.Layer) -> None:
    if not isinstance(layer, keras.layers.Layer):
        return
    # pylint: disable-next=protected-access
    parts = list(zip(layer._flatten_layers(), copy._flatten_layers()))
    same = [[each.dtype_policy for each in pair] for pair in zip(*parts)]
    shapes = [[variable.shape for variable in each.variables] for each in (layer, copy)]
    if same[0] != same[1] or shapes[0] != shapes[1]:
        raise ValueError(f'Layer {layer.name!r} has other weights or dtype policies than one that is made from its '
                         'get_config(). Let its config hold all arguments of its constructor, or save the weights of '
                         'the model and load them into one that you make.')
    for part, copied in parts:
        copied.trainable = part.trainable
        _copy_own_state(part, copied)
    for variable, copied in zip(layer.variables, copy.variables):
        copied.assign(variable.numpy())
        copied.trainable = variable.trainable


def _copy_own_state(layer: keras.layers.Layer, copy: keras.layers.Layer) -> None:
    """Copy what a layer's methods save and load, such as constants of `adapt`, and variables among its attributes."""
    store: dict[str, Any] = {}
    layer.save_own_variables(store)
    copy.load_own_variables(store)
    if hasattr(layer, 'save_assets'):
        with tempfile.TemporaryDirectory() as folder:
            layer.save_assets(folder)
            copy.load_assets(folder)
    for name, value in vars(layer).items():
        if isinstance(value, tf.Variable):
            getattr(copy, name).assign(value)
        if isinstance(value, tf.lookup.experimental.MutableHashTable):
            getattr(copy, name).insert(*value.export())


def _require_shared_weights(pairs: list) -> None:
    """Refuse layers that share a weight, if their copies do not: they would be trained apart."""
    twins: dict[int, keras.Variable] = {}
    for layer, copied in pairs:
        for variable, twin in zip(getattr(layer, 'variables', []), getattr(copied, 'variables', [])):
            if twins.setdefault(id(variable), twin) is not twin:
                raise ValueError(f'Layer {layer.name!r} shares {variable.path!r} with another layer, but one that its '
                                 'get_config() makes has a weight of its own. Call the layer that has the weight '
                                 'wherever it is used.')


def _require_own_weights(model: keras.Model) -> None:
    """Refuse variables that are arguments of operations: a copied graph would still read the old variables."""
    for operation in getattr(model, 'operations', []):  # a Sequential model has layers only
        for node in operation._inbound_nodes:  # pylint: disable=protected-access
            for leaf in keras.tree.flatten((node.arguments.args, node.arguments.kwargs)):
                if isinstance(leaf, keras.Variable):
                    raise ValueError(f'Operation {operation.name!r} reads {leaf.path!r} by reference, which a copy of '
                                     'the model would read too. Read it inside a layer that owns it or is given the '
                                     'layer that does.')
