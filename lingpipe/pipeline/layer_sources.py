"""Sources of a pipeline's layers: Params of a sequence, or a Keras model."""

import contextlib
import functools
import math
import tempfile
from typing import Any

import keras
import tensorflow as tf

from lingpipe import hyperparams
from lingpipe.devices import variable_placement
from lingpipe.keras_graph import keras_model, lora, model_source, unit_costs
from lingpipe.layers import base_layer
from lingpipe.partition import layer_analysis, layer_kernels, layer_memory, layer_profile, tensor_sizes
from lingpipe.stages import micro_batches, random_seeds, stage_layers


class LayersOfParams:
    """A sequence of layers that Params describe; each layer passes all its results to the next.

    Args:
        layer_params: list of InstantiableParams of Keras layers.
        dtype_policy: name of the policy for layers without one, or None.

    Attributes:
        model: None: there is no Keras model.
        layers: list of the Keras layers, once made.
    """

    model = None

    def __init__(self, layer_params: list[hyperparams.InstantiableParams], dtype_policy: str | None = None) -> None:
        self._layer_params, self._dtype_policy = layer_params, dtype_policy

    def __len__(self) -> int:
        return len(self._layer_params)

    @functools.cached_property
    def params(self) -> list[hyperparams.InstantiableParams]:
        """List of the layers' params, in which every layer has a name."""
        return layer_analysis.named_layer_params(self._layer_params, self._dtype_policy)

    @functools.cached_property
    def layers(self) -> list[keras.layers.Layer]:
        """List of the Keras layers, made on first use; they have no weights before `runs`."""
        stack = [params.Instantiate() for params in self.params]
        base_layer.tie_layers(stack)
        return stack

    def specs_of_shapes(self, shapes: Any) -> Any:
        """Returns the nest of `tf.TensorSpec` of an input, from the nest of its shapes `(batch, ...)`."""
        return micro_batches.specs_of_shapes(shapes)

    def analyses(self, input_specs: Any) -> list[layer_analysis.LayerAnalysis]:
        """Returns the list of `LayerAnalysis` for an input of some specs `[batch, ...]`; nothing is allocated."""
        return layer_analysis.analyse_layers(self.params, input_specs)

    def times(self, input_specs: Any, device: str, cache_dir: str | None,
              analyses: list[layer_analysis.LayerAnalysis]) -> list[layer_profile.LayerTime]:
        """Measures layers on a device; see `layer_profile.profile_layers`."""
        return layer_profile.profile_layers(self.params, input_specs, device, cache_dir, analyses)

    def memories(self, input_specs: Any,
                 tensor_size: tensor_sizes.TensorSize = tensor_sizes.plain_size) -> list[layer_memory.LayerMemory]:
        """Returns the list of `LayerMemory` for a micro-batch, with the tensor sizes of a device."""
        return layer_memory.layer_memories(self.params, input_specs, tensor_size)

    def kernels(self, input_specs: Any) -> list[layer_kernels.LayerKernels]:
        """Returns the list of `LayerKernels` for a micro-batch."""
        return layer_kernels.layer_kernels(self.params, input_specs)

    def runs(self, ends: list[int], columns: list[list[str]],
             specs: list) -> list[tuple[stage_layers.StageLayers, None]]:
        """Creates every weight on the device of its stage.

        Args:
            ends: list of ascending end indices, one per stage.
            columns: for each stage, the list of the names of its devices in all replicas.
            specs: list of nests of `tf.TensorSpec` `[batch, ...]`: of the input, and of what each layer returns.

        Returns:
            For each stage, the pair of its `StageLayers` and None: it reads all outputs of the previous stage.
        """
        starts = [0, *ends[:-1]]
        for start, end, devices in zip(starts, ends, columns):
            with base_layer.allocated_variables(), variable_placement.creating_on_one_of(devices):
                for layer, layer_specs in zip(self.layers[start:end], specs[start:end]):
                    layer_analysis.build_layer(layer, layer_specs)
        generators = random_seeds.generators_of(self.layers)
        segments = [stage_layers.LayerSegment(layer, position) for position, layer in enumerate(self.layers)]
        return [(stage_layers.StageLayers(index, segments[start:end], generators), None)
                for index, (start, end) in enumerate(zip(starts, ends))]

    def load_weights(self) -> None:
        """Loads nothing: layers create the weights that training starts from."""

    def enter(self, inputs: Any) -> Any:
        """Converts the user's inputs to the nest that the first stage takes."""
        return inputs

    def pack_outputs(self, outputs: Any) -> Any:
        """Converts the outputs of the last stage to the nest that the user gets."""
        return outputs

    def output_of_one_example(self, analyses: list[layer_analysis.LayerAnalysis]) -> Any:
        """Returns the nest of `tf.TensorSpec` of the stack's outputs, from what `analyses` returned."""
        return analyses[-1].outputs

    def output_spec(self, inputs: Any) -> Any:
        """Returns the nest of Keras symbols of the outputs for such a nest of the inputs."""
        for layer in self.layers:
            inputs = layer.compute_output_spec(inputs)
        return inputs


class LayersOfModel:
    """The layers of a Sequential or Functional model, which share weights with the model itself.

    A tensor that skips partitions goes directly from the one that makes it to the one that reads it::

        CPU:0  stem ──> block 1 ──┬────────────> ...
        CPU:1                     ├─> block 2 ─┐
        CPU:2                     └────────────┴─> add ──> head

    Args:
        model: built `keras.Model`; variables without a value are allocated on the devices of their stages.
        origin: the `KerasModelSource` that made it, whose weights training starts from, or None.

    Attributes:
        model: as given.
        layers: list that contains only the model, which is one layer to Keras.

    Raises:
        ValueError: the model cannot be cut.
    """

    def __init__(self, model: keras.Model, origin: model_source.KerasModelSource | None = None) -> None:
        _refuse_sparse_inputs(model)
        self._graph = keras_model.ModelGraph(model)
        self.model, self.layers, self._origin = model, [model], origin

    def __len__(self) -> int:
        return len(self._graph.units)

    @property
    def input_specs(self) -> Any:
        """Nest of `tf.TensorSpec` of what the model takes."""
        return self._graph.input_structure

    def specs_of_shapes(self, shapes: list) -> Any:
        """Returns the nest of `tf.TensorSpec` of an input: shapes `(batch, ...)` as given, dtypes of the model."""
        return keras.tree.map_structure_up_to(
            self.input_specs, lambda spec, shape: tf.TensorSpec(shape, spec.dtype), self.input_specs, shapes)

    def load_weights(self) -> None:
        """Loads the weights that come with the model, each to its device."""
        if self._origin is not None:
            with lora.able_to_learn(self.model):
                self._origin.load_weights(self.model)

    def validate(self, p: hyperparams.Params) -> None:
        """Raises ValueError if a field of `GPipeLayer.Params()` does not go with the model."""
        if p.layers:
            raise ValueError('layers was given to a pipeline that is made from a Keras model: leave it out.')
        if p.dtype_policy is not None and self._origin is None:
            raise ValueError(
                f'dtype_policy={p.dtype_policy!r} was given to a pipeline that is made from a Keras model, whose '
                'layers have policies of their own. Leave it out, and call keras.config.set_dtype_policy before the '
                'model is made.')
        if p.num_micro_batches != 1 or p.num_replicas != 1:
            self._graph.refuse_micro_batches()
        self._require_enough_units(p)

    def _require_enough_units(self, p):
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
        """Returns the list of `LayerAnalysis`, one per unit of the model.

        Raises:
            ValueError: the input is not what the model takes.
        """
        self._require_inputs(input_specs)
        return self._graph.analyses(input_specs)

    def _require_inputs(self, specs):
        """Checks the inputs as Keras takes them: by name from a dictionary, otherwise in their order."""
        wanted, names = self.input_specs, {symbol.name for symbol in self.model.inputs}
        if isinstance(specs, dict):
            fits = set(wanted if isinstance(wanted, dict) else names) <= set(specs)
        else:
            fits = len(keras.tree.flatten(specs)) == len(keras.tree.flatten(wanted))
        if not fits:
            given = sorted(specs) if isinstance(specs, dict) else f'{len(keras.tree.flatten(specs))} without a name'
            what_to_do = self._origin.suitable_input() if self._origin else 'Give it these.'
            raise ValueError(f'Model {self.model.name!r} takes the tensors '
                             f'{sorted(wanted if isinstance(wanted, dict) else names)}, but the input gives {given}. '
                             f'{what_to_do}')

    def times(self, input_specs: Any, device: str, cache_dir: str | None,
              analyses: Any) -> list[layer_profile.LayerTime]:
        """Measures the units of the model on a device, with copies of their weights there."""
        return unit_costs.times(self._graph, input_specs, device, cache_dir)

    def memories(self, input_specs: Any,
                 tensor_size: tensor_sizes.TensorSize = tensor_sizes.plain_size) -> list[layer_memory.LayerMemory]:
        """Returns the list of `LayerMemory` for a micro-batch; see `LayersOfParams.memories`."""
        return unit_costs.memories(self._graph, input_specs, tensor_size)

    def kernels(self, input_specs: Any) -> list[layer_kernels.LayerKernels]:
        """Returns the list of `LayerKernels` for a micro-batch; see `LayersOfParams.kernels`."""
        return unit_costs.kernels(self._graph, input_specs)

    def runs(self, ends: list[int], columns: list[list[str]],
             specs: Any) -> list[tuple[stage_layers.StageLayers, list[tuple[int, int]]]]:
        """Moves every weight to the device of its stage in the first replica; see `LayersOfParams.runs`."""
        parts = self._graph.stages(ends)
        self._graph.move_variables(parts, [devices[0] for devices in columns])
        generators = random_seeds.generators_of(layer for unit in self._graph.units for layer in unit.layers)
        return [(stage_layers.StageLayers(index, part.segments, generators, keeps_rows=True), part.sources)
                for index, part in enumerate(parts)]

    def enter(self, inputs: Any) -> list[tf.Tensor]:
        """Converts the user's inputs to the list of tensors that the first stage takes."""
        return self._graph.flatten_inputs(tf.nest.map_structure(_as_tensor, inputs))

    def pack_outputs(self, outputs: Any) -> Any:
        """Converts the list of outputs of the last stage to the nest that the model returns."""
        return self._graph.pack_outputs(outputs)

    def output_of_one_example(self, analyses: list[layer_analysis.LayerAnalysis]) -> Any:
        """Returns the nest of `tf.TensorSpec` of the model's outputs, once it is analysed."""
        del analyses
        return self.pack_outputs(list(self._graph.output_specs))

    def output_spec(self, inputs: Any) -> Any:
        """Returns the nest of Keras symbols of the outputs for such a nest of the inputs."""
        outputs = self.model.compute_output_spec(inputs)
        return self.pack_outputs(keras.tree.flatten(outputs))


def of_params(p: hyperparams.Params) -> LayersOfParams | LayersOfModel:
    """Finds the layers that `GPipeLayer.Params()` describe by the field `layers` or `model`.

    Args:
        p: `GPipeLayer.Params()`.

    Returns:
        `LayersOfModel` if `model` is set, else `LayersOfParams`.

    Raises:
        ValueError: the model cannot be made or cut, or does not go with other fields.
    """
    if p.model is None:
        return LayersOfParams(p.layers, p.dtype_policy)
    return of_model_params(p)


def of_model_params(p: hyperparams.Params) -> LayersOfModel:
    """Makes the pipeline's layers of the field `model` of `GPipeLayer.Params()`; see `of_params`."""
    origin = p.model.Instantiate()
    source = LayersOfModel(model_source.make_model(origin, p.dtype_policy), origin)
    source.validate(p)
    return source


def plain_copy(model: keras.Model, device: str) -> keras.Model:
    """Makes a Keras model that is independent of the pipeline.

    The weights of the pipeline's source model are on the devices of the partitions. Keras cannot compile operations
    that use them there, such as grouped convolutions, with XLA. LoRA is merged into the kernels.

    Args:
        model: `keras.Model`.
        device: name of the device on which all weights of the copy are created.

    Raises:
        ValueError: the config of a layer does not make the layer again; the message names it.
    """
    pairs = []

    def clone(layer):
        pairs.append((layer, _made_again(layer)))
        return pairs[-1][1]

    with tf.init_scope(), variable_placement.creating_on(device), lora.merged(model):
        copy = keras.models.clone_model(model, clone_function=clone)
        _require_own_weights(model)
        for layer, copied in pairs:
            _copy_state(layer, copied)
    return copy


def _made_again(layer):
    with _default_policy(getattr(layer, 'dtype_policy', None)):  # of layers that it makes in its constructor
        try:
            return type(layer).from_config(layer.get_config())
        except Exception as error:  # a user's methods may raise anything
            raise ValueError(f'Layer {layer.name!r} cannot be made again of its get_config() ({type(error).__name__}). '
                             'Let its config hold all arguments of its constructor, or save the weights of the model '
                             'and load them into one that you make.') from error


@contextlib.contextmanager
def _default_policy(policy):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy or before)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def _copy_state(layer, copy):
    if not isinstance(layer, keras.layers.Layer):
        return
    if [variable.shape for variable in layer.variables] != [variable.shape for variable in copy.variables]:
        raise ValueError(f'Layer {layer.name!r} has other weights than one that is made from its get_config(). Let its '
                         'config hold all arguments of its constructor, or save the weights of the model and load them '
                         'into one that you make.')
    # pylint: disable-next=protected-access
    for part, copied in zip(layer._flatten_layers(), copy._flatten_layers()):
        if part.dtype_policy != copied.dtype_policy:
            raise ValueError(f'Layer {part.name!r} has the dtype policy {part.dtype_policy.name!r}, but one that the '
                             f'get_config() of {layer.name!r} makes has {copied.dtype_policy.name!r}. Let its config '
                             'hold the policy, or make the inner layer with dtype=self.dtype_policy.')
        copied.trainable = part.trainable
        _copy_own_state(part, copied)
    for variable, copied in zip(layer.variables, copy.variables):
        copied.assign(variable.numpy())
        copied.trainable = variable.trainable


def _copy_own_state(layer, copy):
    """Copies by the methods of the layer that save and load it, such as constants of `adapt`, and by its attributes."""
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


def _require_own_weights(model):
    """Refuses variables that are arguments of operations: a copied graph would still read the old variables."""
    for operation in getattr(model, 'operations', []):  # a Sequential model has layers only
        for node in operation._inbound_nodes:  # pylint: disable=protected-access
            for leaf in keras.tree.flatten((node.arguments.args, node.arguments.kwargs)):
                if isinstance(leaf, keras.Variable):
                    raise ValueError(f'Operation {operation.name!r} reads {leaf.path!r} by reference, which a copy of '
                                     'the model would read too. Read it inside a layer that owns it or is given the '
                                     'layer that does.')


def _as_tensor(leaf):
    """Converts dense inputs; the model itself makes sparse tensors dense."""
    if isinstance(leaf, tf.RaggedTensor):
        raise ValueError('A pipeline was given a ragged tensor, but micro-batches are cut out of dense ones. Make it '
                         'dense by its to_tensor().')
    return leaf if leaf is None or isinstance(leaf, tf.SparseTensor) else tf.convert_to_tensor(leaf)


def _refuse_sparse_inputs(model):
    names = [symbol.name for symbol in getattr(model, 'inputs', None) or [] if getattr(symbol, 'sparse', False)]
    if names:
        raise ValueError(
            f'Inputs {names} of model {model.name!r} are sparse, but micro-batches are cut out of dense tensors. Make '
            'them keras.Input(..., sparse=False); sparse tensors that the model is given then become dense.')
