"""Conversion of a Keras model to a pipeline, and saving."""

from typing import Any, Self

import keras

from lingpipe import hyperparams
from lingpipe.keras_graph import hub_model
from lingpipe.layers import base_layer
from lingpipe.pipeline import arguments, layer_sources


class ModelConversion(base_layer.BaseLayer):
    """The part of `GPipeLayer` that works with whole Keras models."""

    model: Any
    build_from_specs: Any
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
