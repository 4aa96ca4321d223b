"""Every backbone of an installed KerasHub as a pipeline of two partitions, compared with the plain model.

    pip install keras-hub
    python -m benchmarks.equality.keras_hub --only=BertBackbone,ResNetBackbone

Outputs, loss and gradients of a batch in two micro-batches (or one, if two are refused) are compared with Keras's, run
eagerly over the same micro-batches in float32. A model that differs is tried in float64 too, because batch norms over
few values enlarge rounding. The settings are small (`keras_hub_settings.py`).
"""

import collections
import functools
import importlib.metadata
import multiprocessing
import sys
import time
import warnings
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags

import lingpipe
from benchmarks.equality import keras_hub_settings
from benchmarks.support import common

_ONLY = flags.DEFINE_list('only', [], 'Names of classes; none: all.')
_TIMEOUT = flags.DEFINE_integer('timeout', 300, 'Seconds that one class may take.', lower_bound=1)
_NUM_ROWS, _NUM_MICRO_BATCHES, _OPEN_SIZE = 4, (2, 1), 8
_TOLERANCE, _TOLERANCE_OF_16_BITS = 1e-4, 5e-3
_NUM_NAMED = 3  # differences in a row of the table


class Verdict(NamedTuple):
    """What became of one class.

    Attributes:
        result: 'equal', 'different', 'refused', 'crashed', or 'no model' where KerasHub itself does not run it.
        note: what differs, or the error.
    """

    result: str
    note: str


class Step(NamedTuple):
    """Loss, outputs and gradients of one batch; a gradient that Keras does not have is None."""

    loss: Any
    outputs: list
    gradients: list


def try_class(make, dtype_policy='float32'):
    """Compare a model as a pipeline with the model itself.

    Args:
        make: function that returns the model and a batch of inputs.
        dtype_policy: name of a Keras dtype policy, of the model.

    Returns:
        `Verdict`.
    """
    keras.utils.set_random_seed(1)
    keras.config.set_dtype_policy(dtype_policy)
    try:
        model, batch = make()
        _still(model)
    except Exception as error:  # whatever KerasHub raises, there is nothing to compare with
        return Verdict('no model', _line_of(error))
    num_rows = len(keras.tree.flatten(batch)[0])
    for count in [count for count in _NUM_MICRO_BATCHES if num_rows % count == 0]:
        verdict = _compare(model, batch, count)
        if verdict.result != 'refused':
            break
    return verdict


def _compare(model, batch, count):
    values = [variable.numpy() for variable in model.variables]
    try:
        expected = plain_step(model, batch, count)
    except Exception as error:
        return Verdict('no model', _line_of(error))
    for variable, value in zip(model.variables, values):
        variable.assign(value)
    try:
        found = pipeline_step(model, batch, count)
    except ValueError as error:
        return Verdict('refused' if 'lingpipe' in _raiser(error) else 'crashed', _line_of(error))
    except Exception as error:  # the table reports every crash
        return Verdict('crashed', f'{type(error).__name__}: {_line_of(error)}')
    differences = _differences(model, expected, found)
    without = [gradient is None for gradient in expected.gradients]
    if without != [gradient is None for gradient in found.gradients]:
        differences.append('weights without a gradient are others')
    notes = [f'{sum(without)} weights without a gradient'] * any(without) + ['in one micro-batch'] * (count == 1)
    rest = [f'{len(differences) - _NUM_NAMED} more'] * (len(differences) > _NUM_NAMED)
    return Verdict('different' if differences else 'equal', '; '.join(differences[:_NUM_NAMED] + rest or notes))


def _still(model):
    """Switch off what draws random numbers in training: each side would draw others."""
    for layer in model._flatten_layers():  # pylint: disable=protected-access
        for name in ('rate', 'drop_prob'):
            if isinstance(getattr(layer, name, None), float):
                setattr(layer, name, 0.0)


def plain_step(model, batch, count):
    """Return the `Step` of the model by itself, over `count` micro-batches."""
    losses, outputs, gradients = [], [], []
    for part in zip(*[np.split(leaf, count) for leaf in keras.tree.flatten(batch)]):
        with tf.GradientTape() as tape:
            result = model(keras.tree.pack_sequence_as(batch, part), training=True)
            loss = tf.add_n([squares(None, result), *model.losses])
        losses.append(loss)
        outputs.append(keras.tree.flatten(result))
        gradients.append(tape.gradient(loss, model.trainable_variables))
    return Step(
        np.mean(losses), [np.concatenate(row) for row in zip(*outputs)], [_mean(row) for row in zip(*gradients)])


def pipeline_step(model, batch, count):
    """Return the `Step` of the model as a pipeline of two partitions, over `count` micro-batches."""
    pipe = lingpipe.GPipeLayer.from_keras(model, num_partitions=2, num_micro_batches=count)
    num_rows = len(keras.tree.flatten(batch)[0])
    step = pipe.value_and_grad(squares, batch, np.zeros([num_rows, 1], 'float32'), return_outputs=True)
    by_variable = {
        id(variable): _mean([gradient]) for variable, gradient in zip(pipe.trainable_variables, step.gradients)}
    return Step(step.loss, keras.tree.flatten(step.outputs), [
        by_variable[id(variable)] for variable in model.trainable_variables])


def squares(y_true, outputs):
    """Return the sum of the mean squares of all outputs, each less a wave: else it would be constant after a norm."""
    del y_true
    floats = [tf.cast(tensor, tf.float32) for tensor in keras.tree.flatten(outputs) if tensor.dtype.is_floating]
    waves = [
        tf.reshape(tf.cos(tf.range(tf.size(tensor[0]), dtype=tf.float32)), tf.shape(tensor)[1:]) for tensor in floats]
    return tf.add_n([tf.reduce_mean(tf.square(tensor - wave)) for tensor, wave in zip(floats, waves)])


def _mean(gradients):
    """Return the mean as an array: gradients of embeddings are tf.IndexedSlices."""
    if any(gradient is None for gradient in gradients):
        return None
    return np.mean([tf.convert_to_tensor(gradient) for gradient in gradients], axis=0)


def _differences(model, expected, found):
    names = ['loss', *[f'output {place}' for place in range(len(expected.outputs))]]
    values = [(expected.loss, found.loss), *zip(expected.outputs, found.outputs)]
    differences = [
        f'{name} by {_distance(*pair):.1e}' for name, pair in zip(names, values) if _distance(*pair) > _TOLERANCE]
    largest = max([np.abs(gradient).max() for gradient in expected.gradients if gradient is not None], default=0.0)
    for variable, *pair in zip(model.trainable_variables, expected.gradients, found.gradients):
        distance = _distance(
            *[np.zeros(variable.shape) if value is None else value for value in pair], least=1e-2 * largest)
        if distance > (_TOLERANCE_OF_16_BITS if '16' in variable.dtype else _TOLERANCE):
            differences.append(f'gradient of {variable.path} by {distance:.1e}')
    return differences


def _distance(expected, found, least=1e-6):
    """Return how far two arrays are from each other, as a share of the largest value of the first, or of `least`."""
    expected, found = [np.asarray(value, 'float64') for value in (expected, found)]
    if expected.shape != found.shape:
        return float('inf')
    largest = np.abs(expected).max(initial=least)
    return np.abs(expected - found).max(initial=0.0) / largest if np.isfinite(found).all() else float('inf')


def _raiser(error):
    """Return the name of the file in which an error was raised."""
    trace = error.__traceback__
    while trace.tb_next is not None:
        trace = trace.tb_next
    return trace.tb_frame.f_code.co_filename


def _line_of(error):
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return ' '.join(lines)[:400].replace('|', '/') if lines else type(error).__name__


def of_settings(name):
    """Return a model of our own settings, and a batch for it."""
    setting = keras_hub_settings.SETTINGS[name]
    model = _make(keras_hub_settings.Make(f'{setting.folder}.{name}', setting.arguments))
    random = np.random.default_rng(0)
    return model, keras.tree.map_structure(lambda tensor: _batch_of(tensor, setting.inputs, random), model.input)


def _make(value):
    """Make what a `Make` describes, and leave other values as they are."""
    if not isinstance(value, keras_hub_settings.Make):
        return value
    arguments = {name: _make(argument) for name, argument in value.arguments.items()}
    module, _, name = value.name.rpartition('.')
    return getattr(importlib.import_module(f'keras_hub.{module}'), name)(**arguments)


def _batch_of(tensor, inputs, random):
    """Draw values for a symbolic input: tokens from 1 to 9, masks that end in two zeros, numbers from 0 to 1."""
    given = inputs.get(tensor.name, tuple(size or _OPEN_SIZE for size in tensor.shape[1:]))
    if not isinstance(given, tuple):
        return np.broadcast_to(np.array(given, tensor.dtype), (_NUM_ROWS, *np.shape(given))).copy()
    shape = (_NUM_ROWS, *given)
    if 'mask' in tensor.name and tensor.dtype in ('int32', 'bool'):
        return np.broadcast_to(np.arange(shape[-1]) < shape[-1] - 2, shape).astype(tensor.dtype)
    if 'int' in tensor.dtype:
        return random.integers(0 if 'segment' in tensor.name else 1, 2 if 'segment' in tensor.name else 10,
                               shape).astype(tensor.dtype)
    return random.uniform(size=shape).astype(tensor.dtype)


def verdict_of(make):
    """Return the `Verdict` of a model, which says so where it is one in float64."""
    verdict = in_own_process(make, 'float32')
    if verdict.result == 'different':
        again = in_own_process(make, 'float64')
        if again.result == 'equal':
            return Verdict('equal', f'in float64; in float32 {verdict.note}')
    return verdict


def in_own_process(make, dtype_policy):
    """Return the `Verdict` of a model that is tried in a forked process, which ends with all that it holds."""
    context = multiprocessing.get_context('fork')
    ours, theirs = context.Pipe()
    process = context.Process(target=lambda: theirs.send(_try_quietly(make, dtype_policy)))
    process.start()
    theirs.close()
    try:
        return ours.recv() if ours.poll(_TIMEOUT.value) else Verdict(
            'crashed', f'It took more than {_TIMEOUT.value} seconds.')
    except EOFError:
        return Verdict('crashed', 'The process died.')
    finally:
        process.kill()
        process.join()


def _try_quietly(make, dtype_policy):
    warnings.simplefilter('ignore')  # KerasHub's own
    lingpipe.use_virtual_devices(2)
    return try_class(make, dtype_policy)


def main(unused_argv):
    importlib.import_module('keras_hub')  # here, so that it is done once
    rows = []
    for name in _ONLY.value or sorted(keras_hub_settings.SETTINGS):
        start = time.monotonic()
        verdict = verdict_of(functools.partial(of_settings, name))
        rows.append([name, verdict.result, verdict.note, round(time.monotonic() - start)])
        print(*rows[-1], sep=' | ', file=sys.stderr, flush=True)
    counts = collections.Counter(result for _, result, _, _ in rows)
    common.report(
        common.Table(['backbone', 'result', 'note', 's'], rows),
        f'KerasHub {importlib.metadata.version("keras-hub")}, {len(rows)} backbones: ' + ', '.join(
            f'{count} {result}' for result, count in counts.most_common()) + '.')


if __name__ == '__main__':
    app.run(main)
