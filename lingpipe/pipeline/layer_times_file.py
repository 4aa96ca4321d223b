"""The file that keeps measured times of layers, so that the next start need not measure them again."""

import contextlib
import json
import math
from typing import NamedTuple

import tensorflow as tf
from absl import logging

_FILE_NAME = 'layer_times.json'


class Key(NamedTuple):
    """What the time of a layer depends on, all as text.

    Attributes:
        layer: its params without its name.
        inputs: specs of its inputs.
        device: kind of device.
        dtype_policy: Keras's global dtype policy.
        tensorflow: version of TensorFlow.
    """

    layer: str
    inputs: str
    device: str
    dtype_policy: str
    tensorflow: str


def read(folder):
    """Reads what was measured before.

    Args:
        folder: path, on this machine or wherever TensorFlow can read.

    Returns:
        Dictionary from `Key` to the three numbers of a `LayerTime`; empty where there is no file, or a damaged one.
    """
    path = tf.io.gfile.join(folder, _FILE_NAME)
    try:
        if not tf.io.gfile.exists(path):
            return {}
        with tf.io.gfile.GFile(path) as stream:
            return {Key(**entry['key']): _seconds(entry['seconds']) for entry in json.load(stream)}
    except (ValueError, TypeError, KeyError, AttributeError, tf.errors.OpError) as error:
        logging.warning('%s is damaged (%s: %s): the layers are measured again.', path, type(error).__name__, error)
        return {}


def write(folder, times):
    """Replaces the file at once. A disk that cannot be written to costs a warning, no training.

    Args:
        folder: path; made where it is not there.
        times: dictionary from `Key` to the three numbers of a `LayerTime`.
    """
    path = tf.io.gfile.join(folder, _FILE_NAME)
    entries = [{'key': key._asdict(), 'seconds': list(seconds)} for key, seconds in sorted(times.items())]
    try:
        tf.io.gfile.makedirs(folder)
        with tf.io.gfile.GFile(f'{path}.new', 'w') as stream:
            stream.write(json.dumps(entries, indent=1) + '\n')
        tf.io.gfile.rename(f'{path}.new', path, overwrite=True)
    except tf.errors.OpError as error:
        logging.warning('%s could not be written (%s): the next start will measure the layers again.', path, error.message)
        with contextlib.suppress(tf.errors.OpError):
            tf.io.gfile.remove(f'{path}.new')


def _seconds(values):
    forward, backward, recomputed = seconds = tuple(map(float, values))
    if not (all(map(math.isfinite, seconds)) and min(forward, backward, recomputed) >= 0):
        raise ValueError(f'{values} are no times')
    return seconds
