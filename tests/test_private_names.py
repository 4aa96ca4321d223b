"""Names of TensorFlow, Keras and TFDS that LingPipe uses although they are not public: each must still be there.

They are read from the source, so that a new use is looked up too: imports of private modules; names with an underscore
in front that LingPipe does not give itself; and methods with such names that it gives but never calls, which replace
those of a base class.
"""

import ast
import collections
import functools
import importlib
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
_WITHOUT_TENSORFLOW = {pathlib.Path('lingpipe/tools/tpu_compile/worker.py')}


@functools.cache
def _nodes():
    """Return pairs of the path of a source file and a node in it, of all files."""
    paths = [path.relative_to(_ROOT) for path in sorted((_ROOT / 'lingpipe').rglob('*.py'))]
    return [(path, node) for path in paths if path not in _WITHOUT_TENSORFLOW
            for node in ast.walk(ast.parse((_ROOT / path).read_text('utf-8')))]


@functools.cache
def _uses(names_in):
    """Return for each name that `names_in` finds in a node of the source the text of the places where it stands."""
    found = collections.defaultdict(list)
    for path, node in _nodes():
        for name in names_in(node):
            found[name].append(f'{path}:{node.lineno}')
    return {name: ', '.join(places) for name, places in found.items()}


def _imports(node):
    if isinstance(node, ast.Import):
        return [(alias.name, None) for alias in node.names if alias.name.startswith(_PRIVATE_MODULES)]
    if isinstance(node, ast.ImportFrom) and (node.module or '').startswith(_PRIVATE_MODULES):
        return [(node.module, alias.name) for alias in node.names]
    return []


def _attributes(node):
    return [node.attr] if isinstance(node,
                                     ast.Attribute) and isinstance(node.ctx, ast.Load) and _is_private(node.attr) else []


def _set_on_others(node):
    """Names of attributes that replace those of objects which are not LingPipe's."""
    is_set = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_private(node.attr)
    return [node.attr] if is_set and isinstance(node.value,
                                                ast.Name) and node.value.id in ('optimizer', 'layer', 'model', 'variable') else []


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


_ADDED = {'_device_placement'}  # what LingPipe adds to objects of Keras
_GIVEN_TOO = {'_learning_rate', '_get_variable_index', '_compile_loss'}  # Keras's, and names of LingPipe's own besides


def test_private_modules_can_be_imported():
    missing = {f'{module}: {name}': places for (module, name), places in _uses(_imports).items()
               if not _can_be_imported(module, name)}
    assert not missing


def test_private_modules_are_imported_in_one_place():
    places = ', '.join(_uses(_imports).values()).split(', ')
    assert {place.split(':')[0] for place in places} == {'lingpipe/private_api.py'}


def _can_be_imported(module, name):
    try:
        return name is None or hasattr(importlib.import_module(module),
                                       name) or bool(importlib.import_module(f'{module}.{name}'))
    except ImportError:
        return False


def _without_owner(uses, owners):
    return {name: places for name, places in uses.items() if not any(hasattr(owner, name) for owner in owners)}


def test_private_attributes_exist(owners):
    given = _uses(_given)
    used = {name: places for name, places in _uses(_attributes).items() if name not in given}
    assert not _without_owner(used, owners), 'gone from the library that had it'


def test_private_attributes_that_are_replaced_or_named_alike_exist(owners):
    alike = {name: places for name, places in (_uses(_given) | _uses(_attributes)).items() if name in _GIVEN_TOO}
    replaced = {name: places for name, places in _uses(_set_on_others).items() if name not in _ADDED}
    assert alike.keys() == _GIVEN_TOO
    assert not _without_owner(alike | replaced, owners), 'gone from Keras'


def test_masks_are_where_they_are_read():
    masked = keras.layers.Masking()(tf.zeros([1, 2, 3]))
    assert masked._keras_mask.shape == (1, 2), 'Keras keeps masks elsewhere'


def test_private_methods_that_are_replaced_exist(owners):
    called = _uses(_attributes)
    replaced = {name: places for name, places in _uses(_methods).items() if name not in called}
    assert not _without_owner(replaced,
                              owners), 'replaces nothing of a library any more, which then calls something else'
