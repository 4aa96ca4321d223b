"""A Keras model as a pipeline: cut into partitions with its skips, on one set of weights with the model itself."""

import functools

import keras
import tensorflow as tf

from lingpipe.devices import variable_placement
from lingpipe.keras_graph import keras_model
from lingpipe.partition import balancing
from lingpipe.pipeline import gpipe_layer
from lingpipe.stages import control_flow, random_seeds, stage


class KerasPipeline(gpipe_layer.GPipeLayer):
    """A `GPipeLayer` over the layers of a Sequential or Functional model.

    A tensor that skips partitions goes straight from the one that makes it to the one that reads it::

        CPU:0  stem ──> block 1 ──┬────────────> ...
        CPU:1                     ├─> block 2 ─┐
        CPU:2                     └────────────┴─> add ──> head

    Args:
        model: built `keras.Model`.
        params: `GPipeLayer.Params()` without `layers`.

    Raises:
        ValueError: the model cannot be cut, or a field of `params` cannot work.
    """

    def __init__(self, model, params, **kwargs):
        if params.layers:
            raise ValueError('layers was given to a pipeline that is made from a Keras model: leave it out.')
        if params.dtype_policy is not None:
            raise ValueError(
                f'dtype_policy={params.dtype_policy!r} was given to a pipeline that is made from a Keras model, whose layers have '
                'policies of their own. Leave it out, and call keras.config.set_dtype_policy before the model is made.')
        _refuse_pipelines(model)
        _refuse_sparse_inputs(model)
        graph = keras_model.ModelGraph(model)
        if params.num_micro_batches != 1 or params.num_replicas != 1:
            graph.refuse_micro_batches()
        _require_enough_units(graph, params)
        self.graph = graph
        super().__init__(params.Copy().Set(name=params.name or f'{model.name}_pipeline'), **kwargs)
        self.model = model
        self.build_from_specs(graph.input_structure)

    def __setattr__(self, name, value):
        """The graph belongs to no layer: Keras would track the units' layers a second time, in another order."""
        if name == 'graph':
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def __call__(self, inputs, *args, **kwargs):
        return keras.layers.Layer.__call__(self, inputs, *args, **kwargs)

    def build(self, input_shape):
        """The model is built already."""

    @property
    def stack(self):
        """The model, as the one layer that it is to Keras."""
        return [self.model]

    def get_config(self):
        return {'model': keras.saving.serialize_keras_object(self.model), 'params': self.params.ToTextWithTypes()}

    @classmethod
    def from_config(cls, config):
        model = keras.saving.deserialize_keras_object(config['model'])
        return cls(model, gpipe_layer.GPipeLayer.Params().FromTextWithTypes(config['params']))

    def compute_output_spec(self, inputs, training=False, mask=None):
        outputs = control_flow.past_moved_variables(functools.partial(super().compute_output_spec, inputs))
        return self.pack_outputs(keras.tree.flatten(outputs))

    def to_keras(self):
        """Makes a plain Keras model of the present weights, all on the device of the first partition.

        The model that the pipeline was made from has its weights on the devices of the partitions, where Keras does not compile
        for XLA what uses them, such as convolutions in groups.

        Returns:
            `keras.Model`, which has nothing more to do with the pipeline.

        Raises:
            ValueError: the config of a layer does not make the layer again; the message names it.
        """
        pairs = []

        def clone(layer):
            pairs.append((layer, type(layer).from_config(layer.get_config())))
            return pairs[-1][1]

        with tf.init_scope(), variable_placement.creating_on(self.stages[0].device):
            model = keras.models.clone_model(self.model, clone_function=clone)
            _require_own_weights(self.model)
            for layer, copy in pairs:
                _copy_state(layer, copy)
        return model

    def pack_outputs(self, outputs):
        return self.graph.pack_outputs(outputs)

    def _num_layers(self, params):
        return len(self.graph.units)

    def _make_layers(self):
        """The model has its layers."""

    def _analyse(self, input_specs):
        return self.graph.analyses(input_specs)

    def _make_cut(self, input_specs, device):
        return balancing.cut(
            self.params, self._schedule, self.analyses, input_specs=input_specs, device=device, graph=self.graph)

    def _make_stages(self, grid, input_specs):
        parts = self.graph.stages(self._ends)
        self.graph.move_variables(parts, grid[0])
        generators = list({id(state): state for unit in self.graph.units
                           for state in random_seeds.seed_generator_states(unit.layers)}.values())
        return [stage.Stage(index, part.segments, device, generators, part.sources, self._jit_compile,
                            self.params.num_replicas, keeps_rows=True)
                for index, (part, device) in enumerate(zip(parts, grid[0]))]

    def _enter(self, inputs):
        return self.graph.flatten_inputs(tf.nest.map_structure(_as_tensor, inputs))


def _as_tensor(leaf):
    """The model itself makes sparse tensors dense."""
    if isinstance(leaf, tf.RaggedTensor):
        raise ValueError('A pipeline was given a ragged tensor, but micro-batches are cut out of dense ones. Make it dense by its to_tensor().')
    return leaf if leaf is None or isinstance(leaf, tf.SparseTensor) else tf.convert_to_tensor(leaf)


def _refuse_pipelines(model):
    layers = model._flatten_layers() if isinstance(model, keras.Model) else []  # pylint: disable=protected-access
    names = [layer.name for layer in layers
             if any(isinstance(part, gpipe_layer.GPipeLayer) for part in (layer, getattr(layer, 'pipe', None)))]
    if names:
        raise ValueError(f'Layer {names[0]!r} of model {model.name!r} is a pipeline already. Make one pipeline of the whole model, '
                         'in which the model that this one was made of stands in its place.')


def _refuse_sparse_inputs(model):
    names = [symbol.name for symbol in getattr(model, 'inputs', None) or [] if getattr(symbol, 'sparse', False)]
    if names:
        raise ValueError(
            f'Inputs {names} of model {model.name!r} are sparse, but micro-batches are cut out of dense tensors. Make them '
            'keras.Input(..., sparse=False); sparse tensors that the model is given then become dense.')


def _require_enough_units(graph, params):
    whole = [unit.name for unit in graph.units if isinstance(unit.layer, keras.Model)]
    if whole and params.num_partitions * params.num_virtual_stages > len(graph.units):
        raise ValueError(
            f'Model {whole[0]!r} stays whole, as one of {len(graph.units)} layers, too few for num_partitions={params.num_partitions}: '
            'its call does more than call layers and keras.ops, alike in training and inference. Move what else it does, such as '
            'reading a weight, drawing random numbers or adding a loss, into layers.')


def _copy_state(layer, copy):
    if not isinstance(layer, keras.layers.Layer):
        return
    if [variable.shape for variable in layer.variables] != [variable.shape for variable in copy.variables]:
        raise ValueError(f'Layer {layer.name!r} has other weights than one that is made from its get_config(). Let its config hold all '
                         'arguments of its constructor, or save the weights of the model and load them into one that you make.')
    # pylint: disable-next=protected-access
    for part, copied in zip(layer._flatten_layers(), copy._flatten_layers()):
        copied.trainable = part.trainable
    for variable, copied in zip(layer.variables, copy.variables):
        copied.assign(variable.numpy())


def _require_own_weights(model):
    """A copied graph would go on reading variables that are arguments of its operations."""
    for operation in model.operations:
        for node in operation._inbound_nodes:  # pylint: disable=protected-access
            for leaf in keras.tree.flatten((node.arguments.args, node.arguments.kwargs)):
                if isinstance(leaf, keras.Variable):
                    raise ValueError(f'Operation {operation.name!r} reads {leaf.path!r} by reference, which a copy of the model would '
                                     'read too. Read it inside a layer that owns it or is given the layer that does.')
