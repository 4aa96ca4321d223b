import collections
import copy
import math
import pickle

import numpy as np
import pytest
import tensorflow as tf

from lingpipe import hyperparams

Point = collections.namedtuple('Point', ['x', 'y'])


class Dense:
    def __init__(self, params, prefix=''):
        self.name = prefix + params.name

    @classmethod
    def Params(cls):
        return dense_params().Set(cls=cls)


def dense_params(name='dense', units=10):
    p = hyperparams.InstantiableParams(Dense)
    p.Define('name', name, 'Name of the layer.')
    p.Define('units', units, 'Number of outputs.')
    return p


def model_params():
    p = hyperparams.Params()
    p.Define('learning_rate', 0.1, 'Learning rate.')
    p.Define('body', dense_params(), 'The body.')
    p.Define('layers', [dense_params(), dense_params(units=20)], 'A list.')
    p.Define('towers', {'left': dense_params(), 3: (dense_params(),)}, 'A dict.')
    p.Define('shape', None, 'May stay None.')
    return p


def test_set_returns_self_and_takes_dotted_names():
    p = model_params()
    assert p.Set(learning_rate=0.5, **{'body.units': 7, 'layers[1].units': 8, "towers['left'].units": 9}) is p
    assert (p.learning_rate, p.body.units, p.layers[1].units, p.towers['left'].units) == (0.5, 7, 8, 9)


def test_set_replaces_items_of_tuples():
    p = hyperparams.Params()
    p.Define('value', {'a': ((1, [3, 4]),)}, '')
    p.Set(**{"value['a'][0][1][1]": 5})
    assert p.value == {'a': ((1, [3, 5]),)}


@pytest.mark.parametrize(('path', 'nearest'), [
    ('layers[0].name_', r'did you mean layers\[0\].name'), ('units', r'did you mean body.units'),
    ("towers['lift']", r"did you mean towers\['left'\]"), ('learning_rate.x', 'did you mean learning_rate'),
    ('body.units[0]', 'did you mean body.units'), ('layers.x', 'layers.x'), ('no spaces', 'not the name of a parameter')])
def test_wrong_path_names_the_nearest(path, nearest):
    p = model_params()
    for action in (lambda: p.Get(path), lambda: p.Set(**{path: 1})):
        with pytest.raises(AttributeError, match=nearest):
            action()


@pytest.mark.parametrize('name', ['', 'Foo', '1foo', 'foo$', 'foo bar', None, '_params', '__class__'])
def test_define_refuses_illegal_names(name):
    with pytest.raises(ValueError, match='cannot name|Params itself'):
        hyperparams.Params().Define(name, 1, '')


def test_define_accepts_leading_underscore_and_refuses_duplicates():
    p = hyperparams.Params()
    p.Define('_foo9', 1, '')
    with pytest.raises(AttributeError, match='already defined'):
        p.Define('_foo9', 2, '')


def test_delete_removes_fields_and_names_the_nearest():
    p = model_params()
    p.layers[0].Delete('units', 'name')
    assert p.layers[0].GetKeys() == ['cls']
    with pytest.raises(AttributeError, match='did you mean shape'):
        p.Delete('shap')


def test_freeze_forbids_changes_except_of_nested_params():
    """Lingvo does the same."""
    p = model_params()
    p.Freeze()
    changes = [lambda: p.Set(shape=1), lambda: setattr(p, 'shape', 1), lambda: p.Delete('shape'),
               lambda: p.Define('new', 1, ''), lambda: p.FromText('shape : 1'), lambda: setattr(p, '_immutable', False),
               lambda: p.Set(**{'body.units': 1}), lambda: hyperparams.ApplyOverrides(p, 'shape=1')]
    for change in changes:
        with pytest.raises(TypeError, match='immutable'):
            change()
    p.body.units = 1
    assert p.body.units == 1


def test_copy_is_deep_and_stays_frozen():
    p = model_params().Set(shape=[Point([1], {'k': dense_params()})])
    p.Freeze()
    q = p.Copy()
    assert q == p
    assert q.IsImmutable()
    assert type(q.body) is hyperparams.InstantiableParams
    q.body.units = q.layers[0].units = q.towers[3][0].units = 99
    q.shape[0].x.append(2)
    q.shape[0].y['k'].units = 99
    assert p == model_params().Set(shape=[Point([1], {'k': dense_params()})])


def test_copy_keeps_functions_classes_modules_tensors_and_dtypes():
    tensor = tf.constant([1, 2])
    values = [math.sqrt, Dense, math, tensor, tf.bfloat16, dense_params().Copy]
    p = hyperparams.Params()
    p.Define('values', values, '')
    assert all(copied is value for copied, value in zip(p.Copy().values, values))


def test_copy_separates_params_that_a_list_repeats():
    p = hyperparams.Params()
    p.Define('layers', [dense_params()] * 3, '')
    q = p.Copy()
    q.layers[0].units = 1
    assert [layer.units for layer in q.layers] == [1, 10, 10]


def test_pickle_and_deepcopy_give_equal_independent_params():
    p = model_params().Set(shape=(1, math.inf, tf.float32))
    for q in (pickle.loads(pickle.dumps(p)), copy.deepcopy(p), copy.deepcopy([p])[0]):
        assert q == p
        q.body.units = 99
        assert p.body.units == 10


def test_equality_compares_values_arrays_and_nan():
    p, q = hyperparams.Params(), hyperparams.Params()
    p.Define('value', np.array([1, 2]), '')
    q.Define('value', np.array([1, 2]), 'another description')
    assert p == q
    q.value = np.array([1, 3])
    assert p != q
    p.value, q.value = [float('nan')], [float('nan')]
    assert p == q
    p.value, q.value = [1], (1,)
    assert p != q
    assert p != 3
    assert p != hyperparams.Params()


def test_iteration_keys_and_dir_are_sorted_and_str_is_the_text():
    p = hyperparams.Params()
    p.Define('b', 'x', '')
    p.Define('a', [1, dense_params()], '')
    p.Define('c', dense_params(), '')
    assert [name for name, _ in p.IterParams()] == p.GetKeys() == dir(p) == ['a', 'b', 'c']
    assert len(p) == 3
    assert str(p) == p.ToText()


def test_copy_fields_to_skips_cls_and_copies_nested_params():
    source, target = dense_params(units=5), dense_params().Set(cls=None)
    source.Define('child', dense_params(), '')
    target.Define('child', None, '')
    assert hyperparams.CopyFieldsTo(source, target) is target
    target.child.units = 77
    assert (target.cls, target.units, source.child.units) == (None, 5, 10)


def test_instantiate_passes_params_and_further_arguments():
    assert dense_params(name='fc').Instantiate(prefix='my_').name == 'my_fc'
    with pytest.raises(ValueError, match='set cls'):
        hyperparams.InstantiableParams().Instantiate()
