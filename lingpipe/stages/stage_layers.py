"""Layers as a pure function, which takes the values of variables as arguments."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from lingpipe import patches
from lingpipe.layers import base_layer
from lingpipe.stages import batch_statistics, boundary, random_seeds, stage_scope


class Variables(NamedTuple):
    """The variables of one stage, or one value for each variable, in two lists."""

    weights: list  # trainable
    state: list  # other variables, except seeds, that layers read; each forward action may change the values

    def map(self, function: Callable[[Any], Any]) -> 'Variables':
        """Apply `function` to every entry of both lists."""
        return Variables(*[[function(entry) for entry in part] for part in self])


class LayerSegment:
    """A segment that consists of one layer. A stage may recompute each segment separately."""

    call_index = 0

    def __init__(self, layer: keras.layers.Layer, position: int) -> None:
        self.layers = [layer]
        self.position = position

    def __call__(self, inputs: Any, training: bool | None) -> Any:
        return call_layers(self.layers, inputs, training)


class StageLayers:
    """The contiguous layers of a stage.

    Args:
        segments: functions `(nest, training) -> nest`, which run one after the other. Each has three attributes:
            `layers` lists its Keras layers, which are built. `call_index` is the number of earlier calls of these
            layers. `position` is the place of the segment in the model.
        seed_generators: list of the `random_seeds.Generator`s of the whole model, in model order.
        keeps_rows: whether gradients of embeddings stay sparse: concatenated over micro-batches, not summed.
    """

    def __init__(self, index: int, segments: Iterable[Any], seed_generators: list[random_seeds.Generator],
                 keeps_rows: bool = False) -> None:
        self.index = index
        self.keeps_rows = keeps_rows
        self.segments = list(segments)
        self.layers = _without_doubles(layer for segment in segments for layer in segment.layers)
        self._num_seed_generators = len(seed_generators)
        identities = set(map(id, self.layers))
        # places of the stage's own generators in the whole model, on which the random numbers depend
        self.seed_positions = [
            place for place, generator in enumerate(seed_generators) if id(generator.layer) in identities]
        self._own_seed_generators = [seed_generators[place] for place in self.seed_positions]

    @property
    def trainable_variables(self) -> list[keras.Variable]:
        """The trainable Keras variables of the layers, without duplicates."""
        return base_layer.trained_variables(self.layers)

    def variables(self) -> Variables:
        """Return the Keras variables of the layers as `Variables`."""
        special = {id(generator.state) for generator in self._own_seed_generators}
        special |= {id(variable) for variable in self.trainable_variables}
        others = _without_doubles(variable for layer in self.layers for variable in layer.variables)
        return Variables(self.trainable_variables, [variable for variable in others if id(variable) not in special])

    def call(self, inputs: Any, values: Variables, step: tf.Tensor, seeds: random_seeds.Seeds, training: bool | None,
             by_layer: bool = False,
             watch: Callable[[tf.Tensor], Any] = lambda tensor: None) -> tuple[list, stage_scope.StageScope]:
        """Run the layers on one micro-batch, with `values` as variables.

        Args:
            inputs: nest of tensors `[micro_batch, ...]`.
            by_layer: whether a weight has a separate gradient for each segment that uses the weight.
            watch: function that is called with each tensor that holds a trainable variable's value.

        Returns:
            Pair of a list and the scope of the call. The list has the inputs, then the results of each segment.
        """
        nests, scope = [inputs], stage_scope.StageScope(self.variables(), values, seeds, watch)
        with (scope, base_layer.training_step(step), patches.checking_custom_gradients(scope.refuse_hidden_weights),
              patches.recording_moments(batch_statistics.batch_norms(self.layers), scope.record)):
            for index, segment in enumerate(self.segments):
                scope.enter(segment, index, by_layer)
                nests.append(_without_shared_tensors(segment(nests[-1], training=training), nests[-1]))
        return nests, scope

    def seeds(self, seed_and_step: tf.Tensor, micro_batch: tf.Tensor) -> random_seeds.Seeds:
        """Return the `random_seeds.Seeds` of a micro-batch."""
        def draw(call_index: int) -> list:  # each call of a layer in the model has its own seeds
            drawn = random_seeds.draw_seeds(seed_and_step, micro_batch, self._num_seed_generators, call_index)
            return [drawn[position] for position in self.seed_positions]

        def draw_untracked(position: int, number: int) -> tf.Tensor:
            return random_seeds.draw_untracked_seed(seed_and_step, micro_batch, position, number)

        return random_seeds.Seeds(self._own_seed_generators, draw, draw_untracked)

    def given_seeds(self, rows: tf.Tensor) -> random_seeds.Seeds:
        """Return seeds for `call` from an int32 tensor `[generators of the stage, 2]`."""
        return random_seeds.Seeds(self._own_seed_generators, lambda call_index: tf.unstack(rows))  # equal in all calls


def call_layers(layers: list[keras.layers.Layer], inputs: Any, training: bool | None) -> Any:
    """Call layers one after the other."""
    told = {} if training is None else {'training': training}  # also for the inner layers of a layer without it
    for layer in layers:
        inputs = layer(inputs, **told)
    return inputs


def _without_shared_tensors(outputs: Any, inputs: Any) -> Any:
    """Copy inputs that a segment returns unchanged."""
    shared = set(map(id, boundary.unpack(inputs).values))  # without a copy, input and output would have one gradient
    parts = boundary.unpack(outputs)
    values = [tf.identity(value) if id(value) in shared else value for value in parts.values]
    return boundary.pack(parts._replace(values=values), boundary.structure_of(outputs))


def _without_doubles(objects: Any) -> list:
    return list({id(entry): entry for entry in objects}.values())
