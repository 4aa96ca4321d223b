"""The models that benchmarks measure, and their training step as plain layers: what a pipeline is compared with."""

from collections.abc import Callable
from typing import Any, NamedTuple

import common  # noqa: F401
import keras
import tensorflow as tf
from absl import flags

from lingpipe.layers import amoebanet
from lingpipe.pipeline import gpipe_layer, micro_batches, stage

_BATCH_SIZE = flags.DEFINE_integer('batch_size', 256, 'Examples in a step.', lower_bound=1)
_NUM_MICRO_BATCHES = flags.DEFINE_integer('num_micro_batches', 4, 'Micro-batches M in a step.', lower_bound=1)
_NUM_CELLS = flags.DEFINE_integer('num_cells', 3, 'amoebanet: normal cells L.')
_REDUCTION_SIZE = flags.DEFINE_integer('reduction_size', 64, 'amoebanet: filters of the first normal cells D.')
_IMAGE_SIZE = flags.DEFINE_integer('image_size', 32, 'amoebanet: height and width of the images in pixels.')

_NUM_CLASSES = 10
_SEED = 1


class Problem(NamedTuple):
    """A model with a batch to train it on.

    Attributes:
        layers: list of InstantiableParams of Keras layers.
        x: nest of tensors `[batch, ...]`.
        y_true: nest of tensors `[batch, ...]`.
        loss_fn: function `(y_true, outputs)` that gives a loss for each example.
    """

    layers: list
    x: Any
    y_true: Any
    loss_fn: Callable


def _amoebanet():
    """AmoebaNet-D(L, D) without drop-out, drop path and auxiliary head: the same numbers however it is cut."""
    shape = [_BATCH_SIZE.value, _IMAGE_SIZE.value, _IMAGE_SIZE.value, 3]
    return Problem(
        amoebanet.amoebanet_layers(
            'D', _NUM_CELLS.value, _REDUCTION_SIZE.value, num_classes=_NUM_CLASSES, use_auxiliary_head=False,
            dropout_rate=0.0, drop_path_final_keep_prob=1.0),
        tf.random.stateless_normal(shape, [_SEED, 1]),
        tf.random.stateless_uniform([_BATCH_SIZE.value], [_SEED, 2], 0, _NUM_CLASSES, tf.int32),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None))


MODELS = {'amoebanet': _amoebanet}
_MODEL = flags.DEFINE_enum('model', 'amoebanet', sorted(MODELS), 'Model to measure.')


def problem():
    """Returns the `Problem` that the flags describe."""
    return MODELS[_MODEL.value]()


def build_pipe(problem, **fields):
    """Builds a `GPipeLayer` of the problem's layers, with the same initial weights each time.

    Args:
        problem: `Problem`.
        **fields: further fields of `GPipeLayer.Params()`.
    """
    keras.utils.set_random_seed(_SEED)
    pipe = gpipe_layer.GPipeLayer.Params().Set(
        name='pipe', layers=problem.layers, num_micro_batches=_NUM_MICRO_BATCHES.value, **fields).Instantiate()
    pipe.build_from_specs(tf.nest.map_structure(lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype), problem.x))
    return pipe


def pipeline_step(problem, pipe):
    """Returns a function that gives the loss of a step through the pipeline, and the gradients of `pipe`'s weights."""

    @tf.function(autograph=False)
    def step(x, y_true):
        result = pipe.value_and_grad(problem.loss_fn, x, y_true)
        return result.loss, result.gradients

    return step


def plain_step(problem, pipe, num_micro_batches):
    """Returns the same as `pipeline_step` without the pipeline: the layers are called one after the other.

    Args:
        problem: `Problem`.
        pipe: built `GPipeLayer`, whose layers are used.
        num_micro_batches: 1 for the whole batch at once; with more, each waits for the gradients of the one before.
    """
    weights = [weight.value for weight in pipe.trainable_variables]

    @tf.function(autograph=False)
    def step(x, y_true):
        loss, gradients = 0.0, [0.0] * len(weights)
        for part in micro_batches.split((x, y_true), num_micro_batches):
            with tf.control_dependencies([loss, *gradients] if tf.is_tensor(loss) else []):
                part_loss, part_gradients = _value_and_grad(problem, pipe.stack, weights, *part)
                loss += part_loss / num_micro_batches
                gradients = [total + gradient / num_micro_batches for total, gradient in zip(gradients, part_gradients)]
        return loss, gradients

    return step


def _value_and_grad(problem, layers, weights, x, y_true):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(problem.loss_fn(y_true, stage.call_layers(layers, x, training=True)))
    return loss, tape.gradient(loss, weights)
