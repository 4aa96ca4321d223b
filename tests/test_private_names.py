"""Names of TensorFlow, Keras and TFDS that LingPipe uses although they are not public: each must still be there.

They are read from the source, so that a new use is looked up too: names with an underscore in front that LingPipe does
not give itself, and methods with such names that it gives but never calls, which replace those of a base class.
`lingpipe.private_api` imports private modules, so importing it is their test.
"""

import ast
import collections
import functools
import os
import pathlib
import sys
from typing import NamedTuple

import keras
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from tensorflow.python.distribute.coordinator import values

from lingpipe import hyperparams

_ROOT = pathlib.Path(__file__).parents[1]
_PRIVATE_MODULES = ('tensorflow.python', 'tensorflow.compiler', 'tensorflow.core', 'keras.src')
# runs in a process of its own, on jaxlib alone
_WITHOUT_TENSORFLOW = {pathlib.Path('lingpipe/tools/tpu_compiler_process.py')}
_ADDED = {'_device_placement'}  # what LingPipe adds to objects of Keras
_GIVEN_TOO = {'_learning_rate', '_get_variable_index', '_compile_loss'}  # Keras's, and names of LingPipe's own besides


@functools.cache
def _nodes():
    """Return pairs of the path of a source file and a node in it, of all files."""
    paths = [path.relative_to(_ROOT) for path in sorted((_ROOT / 'lingpipe').rglob('*.py'))]
    return [(path, node) for path in paths if path not in _WITHOUT_TENSORFLOW
            for node in ast.walk(ast.parse((_ROOT / path).read_text('utf-8')))]


def _uses(names_in):
    """Return for each name that `names_in` finds in a node of the source the text of the places where it stands."""
    found = collections.defaultdict(list)
    for path, node in _nodes():
        for name in names_in(node):
            found[name].append(f'{path}:{node.lineno}')
    return {name: ', '.join(places) for name, places in found.items()}


def _imports(node):
    modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [getattr(node, 'module', None)]
    return [module for module in modules if (module or '').startswith(_PRIVATE_MODULES)]


def _attributes(node):
    is_read = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    return [node.attr] if is_read and _is_private(node.attr) else []


def _set_on_others(node):
    """Names of attributes that replace those of objects which are not LingPipe's."""
    is_set = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_private(node.attr)
    owners = ('optimizer', 'layer', 'model', 'variable')
    return [node.attr] if is_set and isinstance(node.value, ast.Name) and node.value.id in owners else []


def _given(node):
    """Names that LingPipe gives to functions, classes, variables and attributes."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, (ast.Attribute, ast.Name)) and isinstance(node.ctx, ast.Store):
        return [node.attr if isinstance(node, ast.Attribute) else node.id]
    return []


def _methods(node):
    if not isinstance(node, ast.ClassDef):
        return []
    return [part.name for part in node.body if isinstance(part, ast.FunctionDef) and _is_private(part.name)]


def _is_private(name):
    return name.startswith('_') and not name.startswith('__')


class _Record(NamedTuple):
    """A named tuple, whose methods have an underscore in front too."""

    field: int


@pytest.fixture(scope='module')
def owners():
    """One object of every kind that LingPipe asks for private names."""
    inputs = keras.Input([2])
    model = keras.Model(inputs, keras.layers.BatchNormalization()(inputs))
    model.compile(keras.optimizers.SGD(use_ema=True, gradient_accumulation_steps=2), 'mse')
    model.optimizer.build(model.trainable_variables)
    graph = tf.function(lambda: tf.constant(1)).get_concrete_function().graph
    return [inputs, model, *model.layers, model.optimizer, model.trainable_variables[0], graph,
            tfds.core.GeneratorBasedBuilder, os, sys, _Record(0),
            hyperparams.Params(), values.RemoteValueImpl, tf.distribute.coordinator.ClusterCoordinator]


def test_private_modules_are_imported_in_one_place():
    places = ', '.join(_uses(_imports).values()).split(', ')
    assert {place.split(':')[0] for place in places} == {'lingpipe/private_api.py'}


def test_private_names_exist(owners):
    read, given, methods, replaced = map(_uses, (_attributes, _given, _methods, _set_on_others))
    of_libraries = {name: places for name, places in read.items() if name not in given}
    of_libraries |= {name: places for name, places in methods.items() if name not in read}
    of_libraries |= {name: places for name, places in replaced.items() if name not in _ADDED}
    of_libraries |= {name: (given | read)[name] for name in _GIVEN_TOO}
    missing = {name: places for name, places in of_libraries.items()
               if not any(hasattr(owner, name) for owner in owners)}
    assert not missing, 'gone from the library that had it'


def test_masks_are_where_they_are_read():
    masked = keras.layers.Masking()(tf.zeros([1, 2, 3]))
    assert masked._keras_mask.shape == (1, 2), 'Keras keeps masks elsewhere'
