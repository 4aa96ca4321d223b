"""The models that benchmarks measure, and their training step as plain layers: what a pipeline is compared with."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import tensorflow as tf
from absl import flags

from benchmarks.support import decoder
from lingpipe.layers import amoebanet
from lingpipe.pipeline import gpipe_layer
from lingpipe.stages import micro_batches, stage_layers

_BATCH_SIZE = flags.DEFINE_integer(
    'batch_size', None, 'Examples in a step; amoebanet: 256, decoder: 32.', lower_bound=1)
_NUM_MICRO_BATCHES = flags.DEFINE_integer(
    'num_micro_batches', None, 'Micro-batches M in a step; amoebanet: 4, decoder: 8.', lower_bound=1)
_NUM_CELLS = flags.DEFINE_integer('num_cells', 3, 'amoebanet: normal cells L.')
_REDUCTION_SIZE = flags.DEFINE_integer('reduction_size', 64, 'amoebanet: filters of the first normal cells D.')
_IMAGE_SIZE = flags.DEFINE_integer('image_size', 32, 'amoebanet: height and width of the images in pixels.')

_NUM_BLOCKS = flags.DEFINE_integer('num_blocks', 8, 'decoder: number of blocks.')
_WIDTH = flags.DEFINE_integer('width', 256, 'decoder: size of the vectors.')
_SEQUENCE_LENGTH = flags.DEFINE_integer('sequence_length', 128, 'decoder: number of tokens.')

_NUM_CLASSES = 10
_VOCABULARY_SIZE = 256
_NUM_HEADS = 4
_LEARNING_RATE = 0.01
_SEED = 1


class Problem(NamedTuple):
    """A model with a batch to train it on.

    Attributes:
        layers: list of InstantiableParams of Keras layers.
        x: nest of tensors `[batch, ...]`.
        y_true: nest of tensors `[batch, ...]`.
        loss_fn: function `(y_true, outputs)` that gives a loss for each example.
        num_micro_batches: M.
    """

    layers: list
    x: Any
    y_true: Any
    loss_fn: Callable
    num_micro_batches: int


def _amoebanet():
    """AmoebaNet-D(L, D) without dropout, drop path and auxiliary head: the same numbers however it is cut."""
    batch_size = _BATCH_SIZE.value or 256
    shape = [batch_size, _IMAGE_SIZE.value, _IMAGE_SIZE.value, 3]
    return Problem(
        amoebanet.amoebanet_layers(
            'D', _NUM_CELLS.value, _REDUCTION_SIZE.value, num_classes=_NUM_CLASSES, use_auxiliary_head=False,
            dropout_rate=0.0, drop_path_final_keep_prob=1.0),
        tf.random.stateless_normal(shape, [_SEED, 1]),
        tf.random.stateless_uniform([batch_size], [_SEED, 2], 0, _NUM_CLASSES, tf.int32),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None), _NUM_MICRO_BATCHES.value or 4)


def _decoder():
    """The decoder stack of `decoder.py` on random tokens."""
    tokens = tf.random.stateless_uniform(
        [2, _BATCH_SIZE.value or 32, _SEQUENCE_LENGTH.value], [_SEED, 1], 0, _VOCABULARY_SIZE, tf.int32)
    return Problem(
        decoder.decoder_layers(_NUM_BLOCKS.value, _WIDTH.value, _NUM_HEADS, _VOCABULARY_SIZE), tokens[0], tokens[1],
        keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None), _NUM_MICRO_BATCHES.value or 8)


def decoder_sizes():
    """Return a dictionary of what defines the decoder and its training, for other libraries to be measured on the
    same."""
    return {
        'batch_size': _BATCH_SIZE.value or 32, 'sequence_length': _SEQUENCE_LENGTH.value,
        'num_blocks': _NUM_BLOCKS.value,
        'width': _WIDTH.value, 'num_heads': _NUM_HEADS, 'vocabulary_size': _VOCABULARY_SIZE,
        'learning_rate': _LEARNING_RATE}


MODELS = {'amoebanet': _amoebanet, 'decoder': _decoder}
_MODEL = flags.DEFINE_enum('model', 'amoebanet', sorted(MODELS), 'Model to measure.')


def name():
    """Return the name of the model that --model chooses."""
    return _MODEL.value


def problem():
    """Return the `Problem` that the flags describe."""
    return MODELS[_MODEL.value]()


def input_specs(problem):
    """Return the nest of `tf.TensorSpec` of a problem's `x`."""
    return tf.nest.map_structure(lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype), problem.x)


def build_pipe(problem, **fields):
    """Build a `GPipeLayer` of the problem's layers, with the same initial weights each time; `fields` are further ones."""
    keras.utils.set_random_seed(_SEED)
    pipe = gpipe_layer.GPipeLayer.Params().Set(
        name='pipe', layers=problem.layers, **{'num_micro_batches': problem.num_micro_batches, **fields}).Instantiate()
    pipe.build_from_specs(input_specs(problem))
    return pipe


def pipeline_step(problem, pipe):
    """Return a function that does a step of gradient descent through the pipeline, and gives its loss."""

    @tf.function(autograph=False)
    def step(x, y_true):
        result = pipe.value_and_grad(problem.loss_fn, x, y_true)
        _descend(pipe, result.gradients)
        return result.loss

    return step


def step_seconds(step, problem):
    """Measure steps that follow another step at once, as steps of a training run do.

    After a pause, in which other processes had their turn, a step of two threads takes up to a fifth longer: they often
    wake on the same core. So each measured step follows one that does not count.

    Args:
        step: function of a batch that gives a tensor.
        problem: `Problem`.

    Yields:
        The seconds of one step after the other.
    """
    while True:
        step(problem.x, problem.y_true).numpy()
        start = time.perf_counter()
        step(problem.x, problem.y_true).numpy()
        yield time.perf_counter() - start


def observed_step(problem, pipe):
    """Return the same as `pipeline_step`, which gives the stamps of the pipeline's observer instead of the loss."""

    @tf.function(autograph=False)
    def step(x, y_true):
        _descend(pipe, pipe.value_and_grad(problem.loss_fn, x, y_true).gradients)
        return pipe.grid.observer.stamps()

    return step


def plain_step(problem, pipe, num_micro_batches):
    """Return the same as `pipeline_step` without the pipeline: the layers are called one after the other.

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
        _descend(pipe, gradients)
        return loss

    return step


def _descend(pipe, gradients):
    for variable, gradient in zip(pipe.trainable_variables, gradients):
        with tf.device(variable.value.device):
            variable.value.assign_sub(_LEARNING_RATE * gradient)


def _value_and_grad(problem, layers, weights, x, y_true):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(problem.loss_fn(y_true, stage_layers.call_layers(layers, x, training=True)))
    return loss, [tf.convert_to_tensor(gradient) for gradient in tape.gradient(loss, weights)]
