"""The base of every LingPipe layer: a Keras layer that is built from its Params."""

import keras

from lingpipe import hyperparams


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
        p = hyperparams.InstantiableParams(cls)
        p.Define('name', None, 'Name of the layer; None lets the enclosing stack choose one.')
        p.Define('dtype_policy', None, "Keras dtype policy of the layer, such as 'mixed_bfloat16'; None: the global policy.")
        return p

    def __init__(self, params, **kwargs):
        super().__init__(name=params.name, dtype=params.dtype_policy, **kwargs)
        self.params = params.Copy()
        self.params.Freeze()

    def get_config(self):
        return {'params': self.params.ToTextWithTypes()}

    @classmethod
    def from_config(cls, config):
        return cls(cls.Params().FromTextWithTypes(config['params']))
