"""The base of every LingPipe layer: a Keras layer that is built from its Params."""

import keras

from lingpipe import hyperparams
from lingpipe.layers import dtype_policies


class LayerParams(hyperparams.InstantiableParams):
    """Params of a layer, whose dtype policy is that of the layers inside it too."""

    def Instantiate(self, **kwargs):
        with dtype_policies.default_policy(self.dtype_policy):
            return super().Instantiate(**kwargs)


class BaseLayer(keras.layers.Layer):
    """A Keras layer whose constructor takes one Params object.

    A subclass extends `Params()` with its own fields, creates its child layers in `__init__`, builds each of them
    explicitly in `build` (so that weights can be counted without being allocated), and computes in `call`.
    """

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        hyperparams.RegisterType(cls)
        keras.saving.register_keras_serializable(package=cls.__module__.partition('.')[0])(cls)

    @classmethod
    def Params(cls):
        """Returns the InstantiableParams of this layer class."""
        p = LayerParams(cls)
        p.Define('name', None, 'Name of the layer; None lets the enclosing stack choose one.')
        p.Define('dtype_policy', None, "Keras dtype policy of the layer, such as 'mixed_bfloat16'; None: the global policy.")
        return p

    def __init__(self, params, **kwargs):
        super().__init__(name=params.name, **{'dtype': params.dtype_policy, **kwargs})
        self._policy_of_layers = keras.dtype_policies.get(params.dtype_policy).name
        self.params = params.Copy()
        self.params.Freeze()

    def get_config(self):
        params = self.Params().FromTextWithTypes(self.params.ToTextWithTypes())
        return {'params': params.Set(dtype_policy=self._policy_of_layers).ToTextWithTypes()}

    @classmethod
    def from_config(cls, config):
        return cls.Params().FromTextWithTypes(config['params']).Instantiate()
