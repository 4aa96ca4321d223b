"""Files and texts from strangers run no code: each attack here would leave a file behind if it did."""

import ast
import base64
import marshal
import pathlib
import pickle
import sys

import keras
import pytest
import tensorflow as tf

from lingpipe.layers import keras_params
from lingpipe.models import pipeline_model
from lingpipe.training import checkpoint_contents, errors

ROOT = pathlib.Path(__file__).parents[1]
SOURCES = [ROOT / 'run.py', *ROOT.glob('lingpipe/**/*.py'), *ROOT.glob('params/*.py')]
UNSAFE_MODULES = {
    'pickle', 'cPickle', '_pickle', 'marshal', 'shelve', 'dill', 'cloudpickle', 'joblib', 'yaml', 'code', 'runpy'}
UNSAFE_FUNCTIONS = {
    'eval', 'exec', '__import__', 'system', 'popen', 'load_model', 'model_from_json',
    'enable_unsafe_deserialization', 'load_module', 'exec_module', 'unsafe_load', 'load_op_library'}
MODULE = '''
import pathlib
pathlib.Path({target!r}).touch()
def touch(*args, **kwargs):
    pathlib.Path({target!r}).touch()
class Touch:
    def __init__(self, *args, **kwargs): touch()
    from_config = touch
'''


class Bomb:
    """Makes a file when it is unpickled."""

    def __init__(self, target):
        self._target = target

    def __reduce__(self):
        return pathlib.Path.touch, (self._target,)


@pytest.fixture(name='target')
def target_fixture(tmp_path):
    """A file that must not be there after the test."""
    target = tmp_path / 'target'
    yield target
    assert not target.exists()


@pytest.fixture(name='stranger')
def stranger_fixture(target, tmp_path, monkeypatch):
    """A module that can be imported, which makes the file when it is, and whose functions do."""
    (tmp_path / 'stranger.py').write_text(MODULE.format(target=str(target)))
    monkeypatch.syspath_prepend(tmp_path)
    yield 'stranger'
    assert 'stranger' not in sys.modules


def _calls(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, 'id', '')


def _imports(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition('.')[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or '').partition('.')[0]


@pytest.mark.parametrize('path', SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_source_can_turn_data_into_code(path):
    tree = ast.parse(path.read_text(encoding='utf-8'))
    assert not UNSAFE_MODULES & set(_imports(tree))
    assert not UNSAFE_FUNCTIONS & set(_calls(tree))
    assert not {'allow_pickle', 'safe_mode', 'shell'} & {
        node.arg for node in ast.walk(tree) if isinstance(node, ast.keyword)}


def _keras_attacks(target):
    code = base64.b64encode(marshal.dumps(compile(f'open({str(target)!r}, "w")', 'x', 'exec'))).decode()
    a_lambda = {'class_name': '__lambda__', 'config': {'code': code, 'defaults': None, 'closure': None}}
    return [
        a_lambda,
        {'class_name': '__lambda__', 'config': {'value': [code, [], []]}},
        {'module': 'stranger', 'class_name': 'touch', 'config': 'touch', 'registered_name': 'touch'},
        {'module': 'stranger', 'class_name': 'function', 'config': 'touch', 'registered_name': 'function'},
        {'module': 'stranger', 'class_name': 'Touch', 'config': {}, 'registered_name': None},
        {'module': 'os', 'class_name': 'system', 'config': {'command': f'touch {target}'}, 'registered_name': None},
        {'module': 'builtins', 'class_name': 'function', 'config': 'eval', 'registered_name': 'function'},
        {'module': 'keras.layers', 'class_name': 'Lambda', 'config': {'function': a_lambda}, 'registered_name': None},
        {'module': 'keras.layers', 'class_name': 'TFSMLayer', 'config': {'filepath': str(target)},
         'registered_name': None},
        f"__import__('pathlib').Path({str(target)!r}).touch()", 'stranger.touch', 'stranger>touch', 'os.system', 'eval']


@pytest.mark.parametrize(
    'field', ['activation', 'kernel_initializer', 'kernel_regularizer', 'bias_constraint', 'dtype'])
def test_the_configurations_of_keras_layers_name_no_code(field, target, stranger):
    for attack in _keras_attacks(target):
        p = keras_params.KerasParams(keras.layers.Dense, units=3)
        with pytest.raises((ValueError, TypeError)):
            p.FromText(f'{field} : {attack!r}')
            layer = p.Instantiate()
            layer.build((None, 2))
            layer(tf.ones([1, 2]))


def test_the_configuration_of_a_saved_pipeline_names_no_code(target, stranger):
    for attack in _keras_attacks(target)[:9]:
        for config in ({'name': 'x', 'pipe': attack}, {'name': 'x', 'pipe': {**attack, 'build_config': attack}}):
            with pytest.raises((ValueError, TypeError, AttributeError)):
                pipeline_model.PipelineModel.from_config(config)


def test_what_is_no_checkpoint_is_refused_and_runs_nothing(target, tmp_path):
    for name in ('ckpt-1.index', 'ckpt-1.data-00000-of-00001'):
        (tmp_path / name).write_bytes(pickle.dumps(Bomb(target)))
    with pytest.raises(errors.TrainingError, match='cannot be read'):
        checkpoint_contents.stored_shapes(tmp_path / 'ckpt-1')
