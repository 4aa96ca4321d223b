"""Constructors of pipelines, and the values of 'auto' fields."""

from typing import Any, Self

import keras
from absl import logging

from lingpipe import hyperparams
from lingpipe.devices import device_kinds
from lingpipe.keras_graph import hub_model
from lingpipe.layers import base_layer
from lingpipe.partition import balancing
from lingpipe.pipeline import layer_sources

AUTO = balancing.AUTO
DEFAULTS = dict.fromkeys(('num_partitions', 'num_micro_batches', 'schedule', 'recompute'), AUTO)  # for Keras users
_MICRO_BATCHES_PER_PARTITION = 4  # enough for a negligible bubble (GPipe, arXiv 1811.06965, section 2.3)


class Constructors(base_layer.BaseLayer):
    """The part of `GPipeLayer` that makes pipelines from Keras models, presets and configs."""

    model: Any
    build_from_specs: Any
    stack: Any
    _seed_generator: Any

    @classmethod
    def from_keras(cls, model: keras.Model, **fields: Any) -> Self:
        """Make a built pipeline of a Keras model. The pipeline and the model share their weights.

        Args:
            model: built Sequential or Functional `keras.Model`. Branches, skips, shared layers, nested models and
                several inputs and outputs are allowed. The variables move to the devices of their partitions.
            **fields: fields of `Params()` except `layers`. `num_partitions`, `num_micro_batches`, `schedule` and
                `recompute` are 'auto' by default; see `GPipeLayer`. `partition_by='time'` and `memory_limit` need the
                field `batch_size` if the model has no fixed batch size.

        Raises:
            ValueError: the model cannot be cut; the message names the layer.
        """
        return cls._of_source(cls.Params().Set(**{**DEFAULTS, **fields}), layer_sources.LayersOfModel(model))

    @classmethod
    def from_preset(cls, preset: str, head: str = 'causal_lm', head_arguments: dict[str, Any] | None = None,
                    lora_rank: int | None = None, lora_layers: list[str] | None = None, preprocessor: Any = 'preset',
                    **fields: Any) -> Self:
        """Make a built pipeline of a KerasHub model. Weights are loaded one at a time to their devices.

        Args:
            preset: folder of a preset, or a name such as 'gpt2_base_en' or 'hf://USER/MODEL'.
            head: what the model is for, such as 'causal_lm' or 'text_classifier'; see `hub_model.HEADS`.
            head_arguments: arguments of the head, such as `{'num_classes': 2}`.
            lora_rank: rank of LoRA, which freezes the backbone's original weights. None: no LoRA.
            lora_layers: regular expressions for paths of the layers that get LoRA, such as '.*/query'. None: queries
                and values.
            preprocessor: KerasHub preprocessor, which lets `PipelineModel` take raw texts or images. 'preset': the
                preprocessor of the preset, if there is one. None: `PipelineModel` takes tensors.
            **fields: fields of `Params()`, as for `from_keras`.

        Raises:
            ValueError: the preset cannot be loaded, or the model cannot be cut.
        """
        model = hub_model.KerasHubModel.Params().Set(
            preset=preset, head=head, head_arguments=head_arguments or {}, lora_rank=lora_rank,
            lora_layers=lora_layers)
        params = cls.Params().Set(model=model, **{**DEFAULTS, **fields})
        source = layer_sources.of_model_params(params)
        pipe = cls._of_source(params, source)
        if preprocessor == 'preset':
            preprocessor = hub_model.preset_preprocessor(preset, source.model)
        if preprocessor is not None:
            source.model.preprocessor = preprocessor
        return pipe

    @classmethod
    def _of_source(cls, params: hyperparams.InstantiableParams, source: layer_sources.LayersOfModel) -> Self:
        source.validate(params)
        make: Any = cls  # `GPipeLayer`, which also takes a source
        pipe = make(params.Set(name=params.name or f'{source.model.name}_pipeline'), source)
        pipe.build_from_specs(source.input_specs)
        return pipe

    def get_config(self) -> dict[str, Any]:
        """Return the config from which `from_config` makes an equal pipeline."""
        if self.params.layers:
            return super().get_config()
        name, content = ('layers', self.stack) if self.model is None else ('model', self.model)
        return {name: keras.saving.serialize_keras_object(content), 'params': self.params.ToTextWithTypes()}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Make a pipeline from the result of `get_config`. Keras loads the weights afterwards."""
        if 'model' not in config and 'layers' not in config:
            return super().from_config(config)
        params = cls.Params().FromTextWithTypes(config['params'])
        if 'layers' in config:
            make: Any = cls
            return make(params, layer_sources.LayersOfList(keras.saving.deserialize_keras_object(config['layers'])))
        model = keras.saving.deserialize_keras_object(config['model'])
        return cls._of_source(params, layer_sources.LayersOfModel(model))

    def save_own_variables(self, store: Any) -> None:
        """Save the seed."""
        store['seed'] = self._seed_generator.state.numpy()  # for dropout; Keras does not save seeds

    def load_own_variables(self, store: Any) -> None:
        """Load the seed if the file has one."""
        if 'seed' in store.keys():  # a file of the plain model has none
            self._seed_generator.state.assign(store['seed'])


def with_fields(pipeline: Any) -> Any:
    """Add the fields of Params, with the defaults of `from_keras`, to the docstring of a pipeline class."""
    defaults = {**dict(pipeline.Params().IterParams()), **DEFAULTS}
    lines = ''.join(f'        {name}={defaults[name]!r}: {p.description}\n'
                    for name, p in pipeline.Params()._params.items() if name not in ('cls', 'model'))
    pipeline.__doc__ = f'{(pipeline.__doc__ or "").rstrip()}\n\n    Fields:\n{lines}'
    return pipeline


def given(pipeline: Any, params: hyperparams.InstantiableParams | None, source: Any, fields: dict[str, Any]
          ) -> tuple[hyperparams.InstantiableParams, list[str], layer_sources.LayerSource]:
    """Convert constructor arguments of the class `pipeline` to params and layers.

    Returns:
        The params, the names of the fields that were 'auto', and the source of the layers.

    Raises:
        TypeError: the arguments are invalid, or contradict each other.
    """
    if params is not None:
        if not isinstance(params, hyperparams.Params):
            raise TypeError(f'params={params!r} is not a Params object. A Keras model goes into GPipeLayer.from_keras('
                            'model), a list of layers into GPipeLayer(layers=[...]).')
        for name, value in fields.items():
            raise TypeError(f'{name}={value!r} was given beside Params, which have it as a field. Give '
                            f'params.Set({name}=...), or no Params.')
        source = source or layer_sources.of_params(params)
        return (*_with_numbers(params, len(source)), source)
    layers, model = fields.pop('layers', None), fields.pop('model', None)
    if model is not None or not isinstance(layers, (list, tuple)):
        raise TypeError(f'layers={layers!r} with model={model!r} is not a list of Keras layers. Give one, such as '
                        '[keras.layers.Dense(8), keras.layers.Dense(1)], give Params, or a Keras model to from_keras.')
    layer_sources.refuse_dtype_policy(fields.get('dtype_policy'))
    source = layer_sources.LayersOfList(layers)
    return (*_with_numbers(pipeline.Params().Set(**{**DEFAULTS, **fields}), len(source)), source)


def _with_numbers(p: Any, num_layers: int) -> tuple[hyperparams.InstantiableParams, list[str]]:
    """Return a copy of `p` with values chosen for 'auto', and the names of the fields that were 'auto'."""
    p = hyperparams.CopyFieldsTo(p, p.cls.Params())  # a layer's Params are frozen
    chosen = [field for field in DEFAULTS if p.Get(field) == AUTO]  # 'recompute' stays 'auto'; see `balancing.cut`
    if p.num_partitions == AUTO:
        p.num_partitions = _num_partitions(p, num_layers)
    if p.schedule == AUTO:
        p.schedule = '1f1b' if p.num_virtual_stages == 1 else 'interleaved_1f1b'  # fewer activations than 'gpipe'
    if p.num_micro_batches == AUTO:
        p.num_micro_batches = num_micro_batches(p.num_partitions, p.batch_size, p.num_replicas)
    for field in ('num_partitions', 'num_micro_batches'):
        if field in chosen and p.Get(field) == 1:
            logging.warning(
                "Nothing overlaps in %r: 'auto' chose %s=1 for %d layers, batch_size=%s and the devices %s. "
                'lingpipe.use_virtual_devices makes several of a CPU.', p.name or 'a pipeline', field, num_layers,
                p.batch_size, p.devices or device_kinds.num_devices())
            break
    return p, chosen


def _num_partitions(p: hyperparams.Params, num_layers: int) -> int:
    replicas, stages = [size if isinstance(size, int) and size > 0 else 1
                        for size in (p.num_replicas, p.num_virtual_stages)]
    if p.devices:
        return max(1, len(p.devices) // replicas)
    return max(1, min(device_kinds.num_devices() // replicas, num_layers // stages))


def num_micro_batches(num_partitions: int, batch_size: int | None, num_replicas: int) -> int:
    """Return the number of micro-batches for num_micro_batches='auto'.

    There are at most four micro-batches per partition. With `batch_size`, the number divides the rows of a replica.
    """
    if not isinstance(num_partitions, int) or num_partitions <= 1:
        return 1  # a value that is not a number is refused later
    most = _MICRO_BATCHES_PER_PARTITION * num_partitions
    if not isinstance(batch_size, int) or not isinstance(num_replicas, int) or min(batch_size, num_replicas) < 1:
        return most
    rows = max(1, batch_size // num_replicas)
    return max(count for count in range(1, most + 1) if rows % count == 0)
