"""Sources of a pipeline's layers: Params of a sequence, or a Keras model."""

import contextlib
import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from lingpipe import hyperparams
from lingpipe.devices import variable_placement
from lingpipe.keras_graph import keras_model, lora, model_checks, model_source, unit_costs
from lingpipe.layers import base_layer
from lingpipe.partition import layer_analysis, layer_kernels, layer_memory, layer_profile, tensor_sizes
from lingpipe.stages import graph_pieces, micro_batches, random_seeds, stage, stage_layers


class _Layers:
    """Base class of the sources of a pipeline's layers."""

    model: Any = None  # the Keras model
    input_specs: Any = None  # nest of `tf.TensorSpec` of what the model takes; None: layers do not specify it
    layers: list[keras.layers.Layer]

    def specs_of_shapes(self, shapes: Any) -> Any:
        """Convert shapes `(batch, ...)` to `tf.TensorSpec`s. Without a model, the dtype is Keras's `floatx`."""
        if self.input_specs is None:
            return micro_batches.specs_of_shapes(shapes)
        return keras.tree.map_structure_up_to(
            self.input_specs, lambda spec, shape: tf.TensorSpec(shape, spec.dtype), self.input_specs, shapes)

    def refuse_changes(self) -> None:
        """Raise ValueError if a model calls other layers than when it was cut."""

    def refuse_changed_settings(self) -> None:
        """Call `refuse_changes` if layers or attributes of a model have changed."""

    def load_weights(self) -> None:
        """Load the weights that come with the source, if there are any."""

    def enter(self, inputs: Any) -> Any:
        """Convert the user's inputs to the nest that the first stage takes."""
        return inputs

    def pack_outputs(self, outputs: Any) -> Any:
        """Convert the outputs of the last stage to the nest that the user gets."""
        return outputs

    def output_of_one_example(self, analyses: list[layer_analysis.LayerAnalysis]) -> Any:
        """Return the outputs for one example, as a nest of `tf.TensorSpec`."""
        return analyses[-1].outputs

    def output_spec(self, inputs: Any) -> Any:
        """Return symbolic outputs for symbolic inputs, as nests of `keras.KerasTensor`."""
        for layer in self.layers:
            inputs = layer.compute_output_spec(inputs)
        return inputs


class LayersOfParams(_Layers):
    """A sequence of layers from Params. Each layer passes all its results to the next.

    Args:
        dtype_policy: name of the dtype policy for layers without a policy, or None.
    """

    def __init__(self, layer_params: list[hyperparams.InstantiableParams], dtype_policy: str | None = None) -> None:
        if not isinstance(layer_params, (list, tuple)):
            raise ValueError(f'layers={layer_params!r} is not a list. Set it to a list of the Params of layers.')
        self._layer_params, self._dtype_policy = layer_params, dtype_policy

    def __len__(self) -> int:
        return len(self._layer_params)

    @functools.cached_property
    def params(self) -> list[hyperparams.InstantiableParams]:
        """List of the layers' params, in which every layer has a name."""
        return layer_analysis.named_layer_params(self._layer_params, self._dtype_policy)

    @functools.cached_property
    def layers(self) -> list[keras.layers.Layer]:
        """List of the Keras layers. The weights of these layers get values in `runs`."""
        stack = [params.Instantiate() for params in self.params]
        base_layer.tie_layers(stack)
        return stack

    def analyses(self, input_specs: Any) -> list[layer_analysis.LayerAnalysis]:
        """Analyse the layers for an input with specs `[batch, ...]`, without allocating anything."""
        with _outside_functions():
            return layer_analysis.analyse_layers(self.params, input_specs, self.layers)

    def times(self, input_specs: Any, device: str, cache_dir: str | None,
              analyses: list[layer_analysis.LayerAnalysis]) -> list[layer_profile.LayerTime]:
        """Measure layers on a device; see `layer_profile.profile_layers`."""
        return layer_profile.profile_layers(self.params, input_specs, device, cache_dir, analyses)

    def memories(self, input_specs: Any,
                 tensor_size: tensor_sizes.TensorSize = tensor_sizes.plain_size) -> list[layer_memory.LayerMemory]:
        """Return the list of `LayerMemory` for a micro-batch. `tensor_size` returns the bytes of a tensor."""
        return layer_memory.layer_memories(self.params, input_specs, tensor_size)

    def kernels(self, input_specs: Any) -> list[layer_kernels.LayerKernels]:
        """Return the list of `LayerKernels` for a micro-batch."""
        return layer_kernels.layer_kernels(self.params, input_specs)

    def runs(self, ends: list[int], columns: list[list[str]],
             specs: list) -> list[tuple[stage_layers.StageLayers, None]]:
        """Allocate every weight on a device of its stage, and return the layers of the stages.

        Args:
            columns: for each stage, the names of its devices, one per replica.
            specs: list of nests of `tf.TensorSpec` `[batch, ...]`: the input, then the outputs of each layer.

        Returns:
            List of pairs (`StageLayers`, None), one per stage. None means that a stage reads all outputs of the
            previous stage.
        """
        starts = [0, *ends[:-1]]
        for start, end, devices in zip(starts, ends, columns):
            with variable_placement.creating_on_one_of(devices):
                base_layer.allocate(variable for layer in self.layers[start:end]
                                    for variable in (*layer.variables, *layer.metrics_variables))
        generators = random_seeds.generators_of(self.layers)
        segments = [stage_layers.LayerSegment(layer, position) for position, layer in enumerate(self.layers)]
        return [(stage_layers.StageLayers(index, segments[start:end], generators), None)
                for index, (start, end) in enumerate(zip(starts, ends))]

    def refuse_micro_batches(self, specs: list) -> None:
        """Raise ValueError if micro-batches would change what layers compute. `specs` are as in `runs`."""
        model_checks.refuse_mixed_layers(self.layers, specs)


class LayersOfModel(_Layers):
    """The layers of a Keras model. The pipeline and the model share the weights.

    A tensor that skips partitions goes directly from its producer to the partition that reads it::

        CPU:0  stem ──> block 1 ──┬────────────> ...
        CPU:1                     ├─> block 2 ─┐
        CPU:2                     └────────────┴─> add ──> head

    Args:
        model: built `keras.Model`. Variables without a value are allocated on the devices of their stages.
        origin: the `KerasModelSource` that made the model and loads its initial weights, or None.
    """

    def __init__(self, model: keras.Model, origin: model_source.KerasModelSource | None = None) -> None:
        self._use(model)
        self.layers, self._origin = [model], origin  # to Keras, the model is one layer
        self.input_specs = self._graph.input_structure

    def _use(self, model: keras.Model) -> None:
        self.model, self._graph, self._settings = model, keras_model.ModelGraph(model), _settings_of_calls(model)

    def __len__(self) -> int:
        return len(self._graph.units)

    def refuse_changes(self) -> None:
        self._graph.refuse_changes()

    def refuse_changed_settings(self) -> None:
        """Call `refuse_changes` only if layers or attributes of the model have changed."""
        if _settings_of_calls(self.model) != self._settings:  # `refuse_changes` is slow: it traces subclassed models
            self.refuse_changes()
            self._settings = _settings_of_calls(self.model)  # after the trace, in which a model may count its calls

    def refuse_micro_batches(self, specs: list) -> None:
        """Raise ValueError if micro-batches would change what the model computes."""
        del specs  # the graph has its own
        self._graph.refuse_micro_batches()

    def load_weights(self) -> None:
        if self._origin is not None:
            with lora.able_to_learn(self.model):
                self._origin.load_weights(self.model)

    def validate(self, p: hyperparams.Params) -> None:
        """Raise ValueError if a field of `GPipeLayer.Params()` does not go with the model."""
        if p.layers:
            raise ValueError('layers was given to a pipeline that is made from a Keras model: leave it out.')
        if self._origin is None:
            refuse_dtype_policy(p.dtype_policy)
        self._require_enough_units(p)

    def _require_enough_units(self, p: hyperparams.Params) -> None:
        units = self._graph.units
        whole = [unit.name for unit in units if isinstance(unit.layer, keras.Model)]
        numbers = [size for size in (p.num_partitions, p.num_virtual_stages) if size != 'auto']
        if whole and math.prod(numbers) > len(units):
            raise ValueError(
                f'Model {whole[0]!r} stays whole, as one of {len(units)} layers, too few for '
                f'num_partitions={p.num_partitions}: its call does more than call layers and keras.ops, alike in '
                'training and inference. Move what else it does, such as reading a weight, drawing random numbers or '
                'adding a loss, into layers.')

    def analyses(self, input_specs: Any) -> list[layer_analysis.LayerAnalysis]:
        """Return the list of `LayerAnalysis`, one per layer call of the model."""
        self._require_inputs(input_specs)
        return self._graph.analyses(input_specs)

    def _require_inputs(self, specs: Any) -> None:
        """Raise ValueError if the specs do not match the inputs of the model."""
        own = self.input_specs
        wanted = sorted(own if isinstance(own, dict) else [symbol.name for symbol in self.model.inputs])
        given: Any = sorted(specs) if isinstance(specs, dict) else len(keras.tree.flatten(specs))
        if not (set(wanted) <= set(given) if isinstance(specs, dict) else given == len(wanted)):
            raise ValueError(f'Model {self.model.name!r} takes the tensors {wanted}, but the input gives {given}. Use '
                             'an input that makes these.')

    def times(self, input_specs: Any, device: str, cache_dir: str | None,
              analyses: Any) -> list[layer_profile.LayerTime]:
        """Measure the layer calls of the model on a device."""
        return unit_costs.times(self._graph, input_specs, device, cache_dir)

    def memories(self, input_specs: Any,
                 tensor_size: tensor_sizes.TensorSize = tensor_sizes.plain_size) -> list[layer_memory.LayerMemory]:
        """Return the list of `LayerMemory` for a micro-batch; see `LayersOfParams.memories`."""
        return unit_costs.memories(self._graph, input_specs, tensor_size)

    def kernels(self, input_specs: Any) -> list[layer_kernels.LayerKernels]:
        """Return the list of `LayerKernels` for a micro-batch; see `LayersOfParams.kernels`."""
        return unit_costs.kernels(self._graph, input_specs)

    def runs(self, ends: list[int], columns: list[list[str]],
             specs: Any) -> list[tuple[stage_layers.StageLayers, list[tuple[int, int]]]]:
        """Move every weight to the device of its stage in the first replica; see `LayersOfParams.runs`."""
        parts = self._graph.stages(ends)
        self._graph.move_variables(parts, [devices[0] for devices in columns])
        generators = random_seeds.generators_of(layer for unit in self._graph.units for layer in unit.layers)
        return [(stage_layers.StageLayers(index, part.segments, generators, keeps_rows=True), part.sources)
                for index, part in enumerate(parts)]

    def enter(self, inputs: Any) -> list[tf.Tensor]:
        """Convert the user's inputs to the list of tensors that the first stage takes."""
        return self._graph.flatten_inputs(tf.nest.map_structure(_as_tensor, inputs))

    def pack_outputs(self, outputs: Any) -> Any:
        """Convert the list of outputs of the last stage to the nest that the model returns."""
        return self._graph.pack_outputs(outputs)

    def output_of_one_example(self, analyses: list[layer_analysis.LayerAnalysis]) -> Any:
        """Return the model's outputs for one example, as a nest of `tf.TensorSpec`."""
        del analyses
        return self.pack_outputs(list(self._graph.output_specs))

    def output_spec(self, inputs: Any) -> Any:
        """Return symbolic outputs for symbolic inputs, as nests of `keras.KerasTensor`."""
        return self.pack_outputs(keras.tree.flatten(super().output_spec(inputs)))


class LayersOfList(LayersOfModel):
    """A sequence of the user's Keras layers. Each layer takes what the previous layer returns.

    The layers become a Functional model once the specs of an input are known. Existing weights are kept.

    Args:
        layers: list of Keras layers, with or without weights. The layers need no `get_config`.
    """

    def __init__(self, layers: Sequence[keras.layers.Layer]) -> None:
        for index, layer in enumerate(layers):
            if not isinstance(layer, keras.layers.Layer) or isinstance(layer, keras.layers.InputLayer):
                raise TypeError(f'layers[{index}]={layer!r} is not a Keras layer with a call. Give layers, such as '
                                'keras.layers.Dense(8); Params of layers go into GPipeLayer.Params().Set(layers=...).')
        self.model, self.layers, self._origin = None, list(layers), None
        base_layer.tie_layers(self.layers)

    def __len__(self) -> int:
        return len(self.layers if self.model is None else self._graph.units)

    def analyses(self, input_specs: Any) -> list[layer_analysis.LayerAnalysis]:
        """Return the list of `LayerAnalysis`, one per layer; see `LayersOfModel.analyses`."""
        if self.model is None:
            self._use(_chained(self.layers, input_specs))
        return self._graph.analyses(input_specs)

    def enter(self, inputs: Any) -> list[tf.Tensor]:
        """Convert the user's inputs to a list of tensors."""
        # Not by the model's `flatten_inputs`, because sizes may change from batch to batch.
        return keras.tree.flatten(tf.nest.map_structure(_as_tensor, inputs))

    output_spec = _Layers.output_spec  # the layers may not be chained yet


def _settings_of_calls(model: keras.Model) -> tuple[list[int], dict]:
    """Return the ids of the model's layers, and the settings of the models among them."""
    layers = stage.sublayers([model])
    return list(map(id, layers)), stage.settings([layer for layer in layers if isinstance(layer, keras.Model)])


def refuse_dtype_policy(dtype_policy: str | None) -> None:
    """Raise ValueError if a dtype policy is given. Existing layers have policies of their own."""
    if dtype_policy is not None:
        raise ValueError(f'dtype_policy={dtype_policy!r} was given with layers that have policies of their own. Leave '
                         'it out, and call keras.config.set_dtype_policy before the layers are made.')


LayerSource = LayersOfParams | LayersOfModel


def _chained(layers: Sequence[keras.layers.Layer], input_specs: Any) -> keras.Model:
    """Return a model that calls layers one after the other."""
    with _outside_functions(), base_layer.deferred_variables():  # new weights get no values yet
        inputs = outputs = keras.tree.map_structure(
            lambda spec: keras.Input(spec.shape[1:], dtype=spec.dtype.name), input_specs)
        for layer in layers:
            outputs = layer(outputs)
        return keras.Model(inputs, outputs, name='layers')


@contextlib.contextmanager
def _outside_functions() -> Iterator[None]:
    """Run the `with` block outside any `tf.function` that is being traced."""
    with tf.init_scope(), graph_pieces.recording():  # weights made in the function would lose their values
        yield


def of_params(p: hyperparams.Params) -> LayerSource:
    """Return the source of the layers for params of a `GPipeLayer`.

    Raises:
        ValueError: the model cannot be used, or does not go with other fields.
    """
    return LayersOfParams(p.layers, p.dtype_policy) if p.model is None else of_model_params(p)


def of_model_params(p: hyperparams.Params) -> LayersOfModel:
    """Return the source of the layers for `GPipeLayer` params whose `model` is set; see `of_params`."""
    origin = p.model.Instantiate()
    source = LayersOfModel(model_source.make_model(origin, p.dtype_policy), origin)
    source.validate(p)
    return source


def _as_tensor(leaf: Any) -> Any:
    """Convert an input to a tensor, unless the input is sparse."""
    # The model itself makes sparse tensors dense.
    return leaf if leaf is None or isinstance(leaf, tf.SparseTensor) else tf.convert_to_tensor(leaf)
