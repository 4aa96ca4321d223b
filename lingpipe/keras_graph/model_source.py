"""Sources of whole Keras models, for a pipeline to cut."""

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import keras

from lingpipe import hyperparams
from lingpipe.keras_graph import lora
from lingpipe.layers import base_layer, keras_params
from lingpipe.private_api import global_state

_NAME_COUNTERS = 'object_name_uids'


class KerasModelSource:
    """The source of a Keras model. Weights are loaded after the variables are placed on their devices.

    ::

        make          ──> keras.Model, whose variables need little memory yet
        (GPipeLayer cuts it, and allocates each variable on the device of its partition)
        load_weights  ──> one tensor after the other, each to its device

    A subclass defines `make`, and its own fields in `Params()`. If `make` does not create the weights, the subclass
    defines `load_weights`.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        hyperparams.RegisterType(cls)

    @classmethod
    def Params(cls) -> hyperparams.InstantiableParams:
        """Return the InstantiableParams of this source."""
        p = hyperparams.InstantiableParams(cls)
        p.Define('dtype_policy', None, f'Precision of the model: one of {base_layer.DTYPE_POLICIES}; None: the global '
                                       'policy.')
        lora.define(p)
        return p

    def __init__(self, params: hyperparams.Params) -> None:
        self.params = params.Copy()
        self.params.Freeze()

    def make(self) -> keras.Model:
        """Make a built Sequential or Functional model. Variables without a value are allocated later."""
        raise NotImplementedError(f'{type(self).__name__} makes no model. Write its method make().')

    def load_weights(self, model: keras.Model) -> None:
        """Load the weights that `make` left without values. All variables are already allocated."""
        del model

    def check_tokenizer(self, model: keras.Model, tokenizer: Any) -> None:
        """Raise ValueError if the model was made for the tokens of another tokenizer."""
        del model, tokenizer

    def export(self, model: keras.Model, folder: str, tokenizer: Any) -> list[str]:
        """Write a trained model in the source's own formats, in addition to the '.keras' file and the SavedModel.

        Returns:
            The paths that were written.
        """
        del model, folder, tokenizer
        return []


class ModelOfFunction(KerasModelSource):
    """The source of a model that a function returns with its weights. Host memory holds them all before the cut."""

    @classmethod
    def Params(cls) -> hyperparams.InstantiableParams:
        p = super().Params()
        p.Define('function', None, 'KerasParams of a function that returns a built keras.Model.')
        return p

    def make(self) -> keras.Model:
        function = self.params.function
        model = function.Instantiate()
        if not isinstance(model, keras.Model):
            raise ValueError(f'function: {function.cls.__name__} returned a {type(model).__name__}, not a keras.Model. '
                             'Let it return a built model.')
        return model


def KerasModelParams(function: Callable, **arguments: Any) -> hyperparams.InstantiableParams:
    """Return Params of a Keras model, for `GPipeLayer.Params().model`.

        p.body.model = KerasModelParams(keras.applications.ResNet50, weights=None, classes=10)
        p.body.model = KerasModelParams(keras.saving.load_model, filepath='trained.keras', compile=False)

    Args:
        function: function or class that returns a built `keras.Model`. Each argument is a field of the Params.
    """
    return ModelOfFunction.Params().Set(function=keras_params.KerasParams(function, **arguments))


@contextlib.contextmanager
def fresh_names() -> Iterator[None]:
    """Restart Keras's numbering of layer names in the `with` block. A model then always gets the same names."""
    outer = global_state.get_global_attribute(_NAME_COUNTERS)
    global_state.set_global_attribute(_NAME_COUNTERS, None)
    try:
        yield
    finally:
        global_state.set_global_attribute(_NAME_COUNTERS, outer)


def make_model(source: KerasModelSource, dtype_policy: str | None = None) -> keras.Model:
    """Make the model of a source, with reproducible names. The source's own policy overrides `dtype_policy`."""
    with fresh_names(), base_layer.default_policy(source.params.dtype_policy or dtype_policy):
        model = source.make()
        with base_layer.unallocated_variables():
            lora.apply(model, names_by_path(model), source.params)
        return model


def names_by_path(model: keras.Model) -> dict[str, keras.Variable]:
    """Return the weights of a model by path, such as 'layer_0/query/kernel'. Equal paths get numbers."""
    named: dict[str, keras.Variable] = {}
    for variable in model.weights:
        path = re.sub(f'^{re.escape(model.name)}/', '', variable.path)
        number = sum(1 for known in named if known == path or re.fullmatch(rf'{re.escape(path)}_\d+', known))
        named[f'{path}_{number}' if path in named else path] = variable
    return named
