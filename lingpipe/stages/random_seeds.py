"""Seeds of random layers. These seeds do not depend on the cut of the model."""

import functools
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from lingpipe.devices import collectives, device_kinds
from lingpipe.layers import base_layer
from lingpipe.private_api import seed_generator

# Folded in for generators without a place in the model; call indices, which are folded in too, are smaller.
_UNTRACKED = 2**31


class StepSeeds:
    """A source of [seed, step] for each call of a pipeline. All random numbers of a call depend on this pair."""

    def __init__(self, generator: keras.random.SeedGenerator, num_inferences: tf.Variable) -> None:
        self._generator, self._num_inferences = generator, num_inferences

    def of(self, step: Any, training: bool | None, device: str) -> tf.Tensor:
        """Return the int64 tensor [seed, step] for one call of the pipeline.

        Args:
            step: number of the step; None: an internal count of calls.
            device: device of the first stage.
        """
        if device_kinds.is_logical_core(device):
            return self._of_replica(step, device)
        if step is None:
            return tf.cast(self._generator.next() if training else self._of_inference(), tf.int64)
        seed = tf.cast(self._generator.state.value[0], tf.int64)
        return tf.stack([seed, tf.cast(step, tf.int64)])

    def _of_inference(self) -> tf.Tensor:
        """Return [seed, step] for inference, with a new step in each call."""
        seed, count = tf.unstack(self._generator.state.value)
        with tf.device(self._num_inferences.device):
            number = self._num_inferences.assign_add(1)  # a count of its own: training is not affected
        return tf.stack([tf.cast(seed, tf.int64), -tf.cast(count, tf.int64) - number * 2**32])

    def _of_replica(self, step: Any, device: str) -> tf.Tensor:
        """Return [seed, step] on the logical core `device`, with a seed that differs between replicas."""
        with tf.init_scope(), tf.device(None):  # logical cores cannot read host variables
            seed = int(self._generator.state.value[0])
        replica = collectives.current().index_on(device)
        with tf.device(device):
            return tf.stack([seed + replica * 2**32, tf.cast(step, tf.int64)])


class Generator(NamedTuple):
    """A seed generator of one layer. Layers that share a generator draw different numbers, as in Keras."""

    layer: keras.layers.Layer
    state: keras.Variable


class Seeds:
    """The states of a stage's seed generators for one micro-batch.

    Args:
        draw: function that returns a seed `[2]` per generator. Its argument is the number of earlier calls of a layer.
        draw_untracked: function `(position, number)` that returns a seed `[2]` for a generator that no layer owns. See
            `draw_untracked_seed`. None means that such generators raise ValueError.
    """

    def __init__(self, generators: list[Generator], draw: Callable[[int], Sequence[tf.Tensor]],
                 draw_untracked: Callable[[int, int], tf.Tensor] | None = None) -> None:
        self._generators = generators
        self._draw, self._draw_untracked = functools.cache(draw), draw_untracked
        self._segment: Any = None
        self._untracked: list[keras.Variable] = []

    def enter(self, segment: Any, mapping: dict[int, Any]) -> None:
        """Begin a segment of the stage. Put the states of its generators into `mapping`, {variable id: state}."""
        self._segment = segment
        for variable in self._untracked:
            mapping.pop(id(variable), None)
        self._untracked = []
        layers = set(map(id, segment.layers))
        if any(id(generator.layer) in layers for generator in self._generators):
            pairs = zip(self._generators, self._draw(segment.call_index))
            mapping.update({id(generator.state): tf.cast(row, generator.state.dtype)
                            for generator, row in pairs if id(generator.layer) in layers})

    def untracked(self, variable: keras.Variable) -> tf.Tensor:
        """Return the state of a seed generator that no layer of the segment owns."""
        if self._draw_untracked is None:
            raise ValueError(
                f'One of the layers {[layer.name for layer in self._segment.layers]} draws random numbers without a '
                'seed generator of its own, for which one program for all cores has none. Make self.seed_generator = '
                'keras.random.SeedGenerator() in its __init__ and pass seed=self.seed_generator, or set '
                "tpu_route='stage_programs'.")
        self._untracked.append(variable)
        return tf.cast(self._draw_untracked(self._segment.position, len(self._untracked)), variable.dtype)


def draw_seeds(seed_and_step: tf.Tensor, micro_batch: tf.Tensor, count: int, call_index: int = 0) -> tf.Tensor:
    """Draw seeds `[count, 2]` for all generators of a model. `call_index` is the number of earlier calls of a layer."""
    seed = tf.random.experimental.stateless_fold_in(seed_and_step, micro_batch)
    if call_index:
        seed = tf.random.experimental.stateless_fold_in(seed, call_index)
    return _draw(seed, [count, 2])


def draw_untracked_seed(seed_and_step: tf.Tensor, micro_batch: tf.Tensor, position: int, number: int) -> tf.Tensor:
    """Draw a seed `[2]` for a generator that no layer owns, such as Keras's global generator.

    Args:
        position: place of the segment in the model. A segment is a part of a stage.
        number: number of the generator in the segment.
    """
    seed = tf.random.experimental.stateless_fold_in(seed_and_step, micro_batch)
    for data in (_UNTRACKED + position, number):
        seed = tf.random.experimental.stateless_fold_in(seed, data)
    return _draw(seed, [2])


def is_generator(variable: keras.Variable) -> bool:
    """Return whether a variable is the state of a seed generator."""
    return variable.name == 'seed_generator_state'


def generators_of(layers: Iterable[keras.layers.Layer]) -> list[Generator]:
    """Return the seed generators of some layers, in order. A shared generator appears once per layer."""
    layers = {id(layer): layer for layer in layers}.values()
    return [Generator(layer, state) for layer in layers for state in seed_generator_states([layer])]


def seed_generator_states(layers: Iterable[keras.layers.Layer]) -> list[keras.Variable]:
    """Return the states of all seed generators of some layers, in order."""
    return [variable for layer in layers for variable in layer.variables if is_generator(variable)]


def make_global_generator() -> None:
    """Create Keras's global seed generator if there is none. Call this function before layers are traced."""
    random_state = random.getstate()  # from which Keras draws the seed
    try:
        with base_layer.outside_of_scopes(), tf.device('CPU:0'):
            seed_generator.global_seed_generator()
    finally:
        random.setstate(random_state)  # so weights of later layers do not change


def _draw(seed: Any, shape: Any) -> tf.Tensor:
    return tf.random.stateless_uniform(shape, seed, minval=None, maxval=None, dtype=tf.int32)
