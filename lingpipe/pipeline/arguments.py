"""The arguments that `GPipeLayer` takes instead of Params: Keras layers, and one argument per field."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import keras

from lingpipe import hyperparams
from lingpipe.devices import variable_placement
from lingpipe.pipeline import layer_sources
from lingpipe.stages import stage_layers

AUTO: Literal['auto'] = 'auto'
_MICRO_BATCHES_PER_PARTITION = 4


def params_and_source(pipeline: Any, params: hyperparams.InstantiableParams | None, source: Any,
                      given: Mapping[str, Any]) -> tuple[hyperparams.InstantiableParams, Any]:
    """Returns the Params of a pipeline, and where its layers come from.

    Args:
        pipeline: the class, `GPipeLayer`.
        params: its Params, or None.
        source: see `GPipeLayer`.
        given: dictionary with the arguments of its constructor.

    Raises:
        TypeError: there are both Params and other arguments, or neither Params nor layers.
        ValueError: an argument cannot work.
    """
    if params is not None:
        _refuse_both(pipeline, given)
        return params, source or layer_sources.of_params(params)
    if not isinstance(given['layers'], (list, tuple)):
        raise TypeError(f'layers={given["layers"]!r} is no list of Keras layers. Give one, such as '
                        '[keras.layers.Dense(8), keras.layers.Dense(1)], or give Params.')
    if given['dtype_policy'] is not None:
        raise ValueError(f'dtype_policy={given["dtype_policy"]!r} was given with layers that have policies of their '
                         'own. Leave it out, and call keras.config.set_dtype_policy before the layers are made.')
    source = GivenLayers(given['layers'])
    fields = {name: given[name] for name in pipeline.Params().GetKeys() if name in given}
    params = pipeline.Params().Set(**{**fields, 'layers': source.params})
    if params.num_micro_batches == AUTO:
        params.num_micro_batches = num_micro_batches(params.num_partitions, params.batch_size, params.num_replicas)
    return params, source


def _refuse_both(pipeline, given):
    """Refuses other arguments together with Params, because the arguments would be ignored."""
    for name, argument in inspect.signature(pipeline).parameters.items():
        if argument.kind == argument.KEYWORD_ONLY and given[name] != argument.default:
            raise TypeError(f'{name}={given[name]!r} was given beside Params, which have it as a field. Give '
                            f'params.Set({name}=...), or no Params.')


def num_micro_batches(num_partitions: int, batch_size: int | None, num_replicas: int) -> int:
    """Returns M for num_micro_batches='auto': 4 K, or less if that does not divide the batch.

    With M >= 4 K the bubble of the pipeline is negligible (GPipe, arXiv 1811.06965, section 2.3). M is the largest
    number up to 4 K that divides the rows of a replica; with one partition there is one micro-batch. Nothing is
    measured, so the choice is always the same.

    Args:
        num_partitions: K.
        batch_size: rows of a training batch; None: not known, and batches of less than 4 K rows, or of a number that
            4 K does not divide, are cut as evenly as possible.
        num_replicas: R, among which the rows are shared.
    """
    if not isinstance(num_partitions, int) or num_partitions <= 1:
        return 1  # a value that is not a number is refused with all other fields
    most = _MICRO_BATCHES_PER_PARTITION * num_partitions
    if not isinstance(batch_size, int) or not isinstance(num_replicas, int) or min(batch_size, num_replicas) < 1:
        return most
    rows = max(1, batch_size // num_replicas)
    return max(count for count in range(1, most + 1) if rows % count == 0)


class GivenLayers(layer_sources.LayersOfParams):
    """A sequence of Keras layers, which the pipeline shares with the user.

    Layers that have weights keep them; the weights move to the devices of their partitions. The costs for the cut come
    from copies, which are made from the configs of the layers.

    Args:
        layers: list of Keras layers.

    Raises:
        TypeError: one of them is not a layer.
        ValueError: a layer occurs twice, or its config does not make the layer again.
    """

    def __init__(self, layers: Sequence[keras.layers.Layer]) -> None:
        for index, layer in enumerate(layers):
            if not isinstance(layer, keras.layers.Layer):
                raise TypeError(f'layers[{index}]={layer!r} is no Keras layer. Give layers, such as '
                                'keras.layers.Dense(8); Params of layers go into GPipeLayer.Params().Set(layers=...).')
            if any(layer is other for other in layers[:index]):
                raise ValueError(f'layers[{index}], {layer.name!r}, stands in the list twice. Make a Functional model, '
                                 'in which layers may be shared, and give it to GPipeLayer.from_keras.')
        super().__init__([_params_of(layer) for layer in layers])
        self._given = list(layers)

    @property
    def layers(self) -> list[keras.layers.Layer]:
        """List of the Keras layers, as given."""
        return self._given

    def runs(self, ends: list[int], columns: list[list[str]],
             specs: list) -> list[tuple[stage_layers.StageLayers, None]]:
        """Creates or moves every weight to the device of its stage; see `LayersOfParams.runs`."""
        runs = super().runs(ends, columns, specs)
        for (run, _), devices in zip(runs, columns):
            for variable in (variable for part in run.variables() for variable in part):
                if variable_placement.owner(variable, devices) not in devices:
                    variable_placement.move(variable, devices[0])
        return runs


@hyperparams.RegisterType
class LayerOfConfig:
    """A layer that Keras has serialized; `Params().Instantiate()` makes the layer again, with a given name."""

    @classmethod
    def Params(cls) -> hyperparams.InstantiableParams:
        """Returns the InstantiableParams of such a layer."""
        p = hyperparams.InstantiableParams(cls)
        p.Define('name', None, 'Name of the layer.')
        p.Define('config', None, 'Dictionary that keras.saving.serialize_keras_object returned, without the name.')
        return p

    def __new__(cls, params: hyperparams.Params) -> keras.layers.Layer:  # type: ignore[misc]
        config = {**params.config, 'config': {**params.config['config'], 'name': params.name}}
        try:
            return keras.saving.deserialize_keras_object(config)
        except (TypeError, ValueError, NotImplementedError) as error:
            raise _unmade_error(params.name, error) from error


def _params_of(layer):
    try:
        config = keras.saving.serialize_keras_object(layer)
        inner = {key: value for key, value in config['config'].items() if key != 'name'}
    except (TypeError, ValueError, NotImplementedError) as error:
        raise _unmade_error(layer.name, error) from error
    config = {key: value for key, value in {**config, 'config': inner}.items() if key != 'build_config'}
    return LayerOfConfig.Params().Set(name=layer.name, config=config)


def _unmade_error(name, error):
    reason = ' '.join(str(error).split())
    return ValueError(f'Layer {name!r} cannot be made again of its get_config() ({reason}), as the cut requires. Let '
                      'get_config() return all arguments of its constructor, or make a keras.Sequential of the layers '
                      'and give it to GPipeLayer.from_keras, which needs no config.')
