"""Copy of a Keras model whose weights are on the devices of partitions."""

import contextlib
import tempfile
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from lingpipe.devices import variable_placement
from lingpipe.keras_graph import lora


def plain_copy(model: keras.Model, device: str) -> keras.Model:
    """Make a Keras model that is independent of the pipeline.

    The weights of the pipeline's source model are on the devices of the partitions. Keras cannot compile operations
    that use them there, such as grouped convolutions, with XLA. LoRA is merged into the kernels.

    Args:
        device: name of the device on which all weights of the copy are created.

    Raises:
        ValueError: the config of a layer does not make the layer again; the message names it.
    """
    pairs = []

    def clone(layer: keras.layers.Layer) -> keras.layers.Layer:
        pairs.append((layer, _made_again(layer)))
        return pairs[-1][1]

    with tf.init_scope(), variable_placement.creating_on(device), lora.merged(model):
        copy = keras.models.clone_model(model, clone_function=clone)
        _require_own_weights(model)
        for layer, copied in pairs:
            _copy_state(layer, copied)
        _require_shared_weights(pairs)
    return copy


def _made_again(layer: keras.layers.Layer) -> keras.layers.Layer:
    with _default_policy(getattr(layer, 'dtype_policy', None)):  # of layers that it makes in its constructor
        try:
            return type(layer).from_config(layer.get_config())
        except Exception as error:  # a user's methods may raise anything
            raise ValueError(f'Layer {layer.name!r} cannot be made again of its get_config() ({type(error).__name__}). '
                             'Let its config hold all arguments of its constructor, or save the weights of the model '
                             'and load them into one that you make.') from error


@contextlib.contextmanager
def _default_policy(policy: Any) -> Iterator[None]:
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy or before)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def _copy_state(layer: keras.layers.Layer, copy: keras.layers.Layer) -> None:
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


def _copy_own_state(layer: keras.layers.Layer, copy: keras.layers.Layer) -> None:
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


def _require_shared_weights(pairs: list) -> None:
    """Refuse layers that share a weight, if their copies do not: they would be trained apart."""
    twins: dict[int, keras.Variable] = {}
    for layer, copied in pairs:
        for variable, twin in zip(getattr(layer, 'variables', []), getattr(copied, 'variables', [])):
            if twins.setdefault(id(variable), twin) is not twin:
                raise ValueError(f'Layer {layer.name!r} shares {variable.path!r} with another layer, but one that its '
                                 'get_config() makes has a weight of its own. Call the layer that has the weight '
                                 'wherever it is used, or save the weights of the model and load them into one that '
                                 'you make.')


def _require_own_weights(model: keras.Model) -> None:
    """Refuse variables that are arguments of operations: a copied graph would still read the old variables."""
    for operation in getattr(model, 'operations', []):  # a Sequential model has layers only
        for node in operation._inbound_nodes:  # pylint: disable=protected-access
            for leaf in keras.tree.flatten((node.arguments.args, node.arguments.kwargs)):
                if isinstance(leaf, keras.Variable):
                    raise ValueError(f'Operation {operation.name!r} reads {leaf.path!r} by reference, which a copy of '
                                     'the model would read too. Read it inside a layer that owns it or is given the '
                                     'layer that does.')
