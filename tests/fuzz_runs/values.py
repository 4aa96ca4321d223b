"""What is in a checkpoint, and the loss that its weights have, computed by hand."""

import io
import os
import re
import shutil
import tempfile
import zipfile

import h5py
import numpy as np
import tensorflow as tf

from tests.fuzz_runs import experiment

_SUFFIX = '/.ATTRIBUTES/VARIABLE_VALUE'
_EPSILON = 1e-3  # Keras's, of batch norm


def stored(path):
    """Return {name: array} of all that a checkpoint holds; raise what TensorFlow does where it is damaged."""
    folder, name = os.path.split(path)
    with tempfile.TemporaryDirectory() as plain:  # TensorFlow takes the path for a pattern
        for file in os.listdir(folder):
            if file.startswith(f'{name}.'):
                shutil.copy(os.path.join(folder, file), plain)
        reader = tf.train.load_checkpoint(os.path.join(plain, name))
        return {name.removesuffix(_SUFFIX).replace('..', '.'): reader.get_tensor(name) for name in reader.get_variable_to_shape_map()
                if not name.startswith(('_', 'save_counter'))}


def differing(found, wanted, tolerance=None):
    """Return the names of the values that differ; in bits, or by more than a part of the largest value."""
    if found.keys() != wanted.keys():
        return sorted(found.keys() ^ wanted.keys())
    if tolerance is None:
        return [name for name in found if found[name].tobytes() != wanted[name].tobytes()]
    return [name for name in found if np.abs(found[name].astype('float64') - wanted[name]).max(
        initial=0) > tolerance * np.abs(wanted[name]).max(initial=1e-2)]


def loss(values):
    """Return the loss of the test data by what `stored` returns."""
    names = {name.split('/')[1] for name in values if name.startswith('model/')}
    cls = max(experiment.MODELS.values(), key=lambda model: len(names & set(model.NAMES[:len(model.LAYERS)])))
    data = cls().Test().Instantiate()
    features, targets = (column.numpy() for column in data._columns)
    outputs = features.astype('float64')
    for name, (kind, _) in zip(cls.NAMES, cls.LAYERS):
        weights = [values[key] for key in evaluated(values, name)]
        if kind == experiment.DENSE:
            outputs = outputs @ weights[0] + weights[1]
            outputs = outputs if name == cls.NAMES[len(cls.LAYERS) - 1] else np.tanh(outputs)
        elif kind == experiment.NORM:
            gamma, beta, mean, variance = weights
            outputs = (outputs - mean) / np.sqrt(variance + _EPSILON) * gamma + beta
    return float(np.mean(np.square(outputs - targets)))


def evaluated(values, layer):
    """Return the names of a layer's values in evaluation: of moving averages, where there are any."""
    prefix = re.compile(rf'model/{re.escape(layer)}/\d+_(?!seed)')
    names = sorted(name for name in values if prefix.match(name))
    averages = [re.sub('^model', 'moving_average', name) for name in names]
    return [average if average in values else name for name, average in zip(names, averages)]


def exported(folder):
    """Return the arrays of the weights in an exported Keras file."""
    with zipfile.ZipFile(os.path.join(folder, 'export', 'model.keras')) as archive:
        content = archive.read('model.weights.h5')
    arrays = []
    with h5py.File(io.BytesIO(content)) as file:
        file.visititems(lambda name, item: arrays.append(np.asarray(item)) if isinstance(item, h5py.Dataset) else None)
    return arrays
