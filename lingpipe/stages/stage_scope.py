"""The scope in which layers of a traced stage use tensors instead of Keras variables."""

import collections
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from lingpipe.private_api import keras_backend
from lingpipe.stages import boundary, graph_pieces, random_seeds


class NormCall(NamedTuple):
    """A call of a batch norm that computes moments of the inputs. Tensors have shape `[channels]`."""

    norm: Any  # the `keras.layers.BatchNormalization`
    mean: tf.Tensor
    variance: tf.Tensor
    count: tf.Tensor  # number of values behind mean and variance: those that the mask keeps
    is_masked: bool


class Version(NamedTuple):
    """A tensor that layers read instead of a weight."""

    variable: Any  # of Keras
    value: tf.Tensor  # whose gradient is a part of the gradient of the variable
    segment: int  # index of the segment that reads it; -1: any segment may


class StageScope(keras.StatelessScope):
    """A scope that replaces Keras variables by tensors while layers run on one micro-batch.

    ::

        a layer reads    a variable of the stage    its tensor
                         a seed generator           numbers that depend on seed, step, micro-batch and segment
                         any other variable         a placeholder, which the caller of the stage feeds
        a layer assigns  moving averages, from the  nothing is assigned until the end of the batch
                         moments of a batch norm
                         anything else              later reads return the assigned value

    As in Keras, no gradient passes through an assigned value.

    Args:
        variables: `Variables` of the stage.
        values: `Variables` with the tensor for each variable.
        watch: function that is called with each tensor that layers read instead of a trainable variable.
    """

    def __init__(self, variables: Any, values: Any, seeds: Any, watch: Callable[[tf.Tensor], Any]) -> None:
        super().__init__(zip(variables.weights + variables.state, values.weights + values.state), collect_losses=True,
                         initialize_variables=False)
        self._graph, self._seeds, self._watch = tf.compat.v1.get_default_graph(), seeds, watch
        self._segment = -1
        self._assigned: dict[int, tuple] = {}
        self._deferred: collections.Counter[int] = collections.Counter()
        self._trainable = {id(variable): variable for variable in variables.weights}
        self.borrowed: dict[int, tuple[keras.Variable, tf.Tensor]] = {}
        self.versions: list[Version] = []
        self.norm_calls: list[NormCall] = []
        # the sum of each counts; Keras's own list `losses` drops the earlier losses of a layer that is called again
        self.added_losses: list[Any] = []
        for variable in variables.weights:
            self._add_version(variable)

    @property
    def assigned(self) -> list[tuple[keras.Variable, tf.Tensor, tf.Tensor]]:
        """Triples (variable, new value, old value) of all assigned variables except seeds and moving averages."""
        return [(variable, self.state_mapping[id(variable)], before) for variable, before in self._assigned.values()]

    def enter(self, segment: Any, index: int, separate: bool) -> None:
        """Begin segment `index` of the stage. If `separate`, each weight gets a gradient for this segment alone."""
        self._segment = index if separate else -1
        self._seeds.enter(segment, self.state_mapping)
        for variable in list(self._trainable.values()) if separate else []:
            self.state_mapping[id(variable)] = tf.stop_gradient(self.state_mapping[id(variable)])
            self._add_version(variable)

    def get_current_value(self, variable: keras.Variable) -> Any:
        """Return the tensor that a layer reads instead of a variable. Keras calls this method."""
        if id(variable) not in self.state_mapping:
            if random_seeds.is_generator(variable):
                self.state_mapping[id(variable)] = self._seeds.untracked(variable)
            else:
                self._borrow(variable)
        return self.state_mapping[id(variable)]

    def add_loss(self, loss: Any) -> None:
        """Record a loss of a layer. Keras calls this method."""
        super().add_loss(loss)
        self.added_losses.append(loss)

    def add_update(self, update: tuple[keras.Variable, Any]) -> None:
        """Record a value that a layer assigns, for later reads. Keras calls this method."""
        variable, value = update
        if self._deferred[id(variable)]:  # moving averages of a batch norm change only at the end of the batch
            self._deferred[id(variable)] -= 1
            return
        self._require_reachable(value, f'assigns {variable.path!r}', 'Assign it after the loop or branch')
        if not random_seeds.is_generator(variable):
            self._assigned.setdefault(id(variable), (variable, self.get_current_value(variable)))
        self.state_mapping[id(variable)] = tf.stop_gradient(value)
        self._add_version(variable)

    def _require_reachable(self, tensor: Any, what: str, advice: str) -> None:
        """Raise ValueError if a tensor is inside a loop, branch or function."""
        if tf.is_tensor(tensor) and getattr(tensor, 'graph', self._graph) is not self._graph:
            raise ValueError(
                f'A layer {what} inside a tf.while_loop, tf.cond, tf.map_fn or tf.function of its own, out of which a '
                f'partition cannot carry it. {advice}, or leave the function undecorated.')

    def record(self, norm: keras.layers.BatchNormalization, inputs: Any, mask: Any, mean: tf.Tensor,
               variance: tf.Tensor) -> None:
        """Record the moments that a batch norm has computed. See `patches.recording_moments`."""
        self._require_reachable(mean, f'calls the batch norm {norm.name!r} in training', 'Call it outside of the loop')
        if mean.shape != norm.moving_mean.shape:  # [] for one channel with a mask
            mean, variance = (tf.reshape(value, norm.moving_mean.shape) for value in (mean, variance))
        self.norm_calls.append(NormCall(norm, mean, variance, _count(inputs, mask, norm), mask is not None))
        self._deferred.update([id(norm.moving_mean), id(norm.moving_variance)])

    def refuse_hidden_weights(self, results: Any, arguments: Any) -> None:
        """Raise ValueError if a function with a custom gradient captures a weight."""
        stops = frozenset(tensor.ref() for tensor in tf.nest.flatten(arguments) if tf.is_tensor(tensor))
        results = [tensor for tensor in tf.nest.flatten(results) if tf.is_tensor(tensor) and tensor.ref() not in stops]
        if not results:
            return
        inner = {id(outer): inner for outer, inner in getattr(results[0].graph, 'captures', [])}
        needed = graph_pieces.ancestors(results, stops=stops)
        # In a stage, weights are tensors. The function gives gradients to arguments, not to tensors that it captures.
        hidden = [version.variable.path for version in self.versions
                  if inner.get(id(version.value), version.value).op in needed and version.value.ref() not in stops]
        if hidden:
            raise ValueError(
                f'A layer computes {results[0].name!r} by tf.recompute_grad, keras.remat or tf.custom_gradient, and '
                f'the function reads {hidden[:3]}, to which TensorFlow would give no gradient inside a partition. Give '
                "it the weight as an argument; or leave it out, and have the pipeline recompute by recompute='layer'.")

    def _borrow(self, variable: keras.Variable) -> None:
        own_dtype = keras_backend.AutocastScope(None)  # otherwise the dtype would be that to which variables are cast
        with self._graph.as_default(), tf.control_dependencies(None), own_dtype:
            placeholder = tf.compat.v1.placeholder(variable.dtype, variable.shape)
        self.borrowed[id(variable)] = (variable, placeholder)
        self.state_mapping[id(variable)] = placeholder
        if variable.trainable:
            self._trainable[id(variable)] = variable
        self._add_version(variable)

    def _add_version(self, variable: keras.Variable) -> None:
        if id(variable) in self._trainable and boundary.is_differentiable(variable.dtype):
            self.versions.append(Version(variable, self.state_mapping[id(variable)], self._segment))
            self._watch(self.state_mapping[id(variable)])


def _count(inputs: Any, mask: Any, norm: keras.layers.BatchNormalization) -> tf.Tensor:
    """Return the number of values in each channel, as a tensor `[channels]`."""
    if mask is not None:
        weights = tf.broadcast_to(tf.cast(mask, 'float32')[..., tf.newaxis], tf.shape(inputs))
        return tf.reduce_sum(weights, norm._reduction_axes)
    sizes, channels = [inputs.shape[axis] for axis in norm._reduction_axes], inputs.shape[norm.axis]
    if None not in sizes:
        return tf.constant(math.prod(sizes), tf.float32, [channels])
    count = tf.reduce_prod(tf.gather(tf.shape(inputs, tf.int64), norm._reduction_axes))
    return tf.fill([channels], tf.cast(count, 'float32'))
