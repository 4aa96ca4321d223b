import enum
import math
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from lingpipe import hyperparams


class Color(enum.Enum):
    RED = 1


class Dense:
    @classmethod
    def Params(cls):
        p = hyperparams.InstantiableParams(cls)
        p.Define('units', 10, 'Number of outputs.')
        p.Define('activation', None, 'Activation.')
        return p


class Conv(Dense):
    class Kernel:
        pass

    @classmethod
    def Params(cls):
        p = super().Params()
        p.Define('kernel_size', (3, 3), 'Height and width.')
        p.Define('child', None, 'Params of a child.')
        return p


def activation(x):
    return x


for registered in (Color, Dense, Conv, Conv.Kernel, activation):
    hyperparams.RegisterType(registered)


def holding(value):
    p = hyperparams.Params()
    p.Define('value', value, '')
    return p


def is_same(a, b):
    """An independent equality: of types too, and NaN equals NaN."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return repr(a) == repr(b)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(is_same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(is_same(a[key], b[key]) for key in a)
    if isinstance(a, hyperparams.Params):
        return is_same(dict(a.IterParams()), dict(b.IterParams()))
    return a == b


# ---- round trips ----------------------------------------------------------------------------------------------------

HARD_TEXT = st.text(st.one_of(st.characters(), st.sampled_from('\'"\\\n\r\t#:;=[]{}x\x00\x85\u2028\ud800 ')))
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), HARD_TEXT,
    st.sampled_from([
        Dense, Conv, Conv.Kernel, activation, dict, len, Dense.Params, tf.float32, tf.bfloat16, tf.string]))
KEYS = st.one_of(HARD_TEXT, st.integers(-999, 999), st.booleans(), st.tuples(HARD_TEXT, st.integers()))


def containers(children):
    return st.one_of(
        st.lists(children, max_size=4), st.lists(children, max_size=4).map(tuple),
        st.dictionaries(KEYS, children, max_size=4))


VALUES = st.recursive(SCALARS, containers, max_leaves=10)


def with_params(children):
    conv = st.builds(lambda a, c: Conv.Params().Set(activation=a, child=c), children, children)
    keys = st.one_of(HARD_TEXT, st.integers(-999, 999))
    return st.one_of(conv, st.lists(children, max_size=4), st.lists(children, max_size=4).map(tuple),
                     st.dictionaries(keys, children, max_size=4))


for known in (dict, len, Dense.Params):
    hyperparams.RegisterType(known)


@settings(max_examples=400, deadline=None)
@given(VALUES)
def test_text_of_any_value_is_read_back_exactly_into_a_field_that_is_none(value):
    p, q = holding(value), holding(None)
    assert is_same(q.FromText(p.ToText()).value, value)


@settings(max_examples=300, deadline=None)
@given(st.recursive(VALUES, with_params, max_leaves=8), VALUES)
def test_text_with_types_is_read_back_exactly_whatever_the_field_held(value, before):
    p, q = holding(value), holding(before)
    assert is_same(q.FromTextWithTypes(p.ToTextWithTypes()).value, value)


@settings(max_examples=200, deadline=None)
@given(st.recursive(VALUES, with_params, max_leaves=8))
def test_params_that_read_their_own_text_stay_as_they_are(value):
    p = holding(value)
    q = p.Copy().FromText(p.ToText())
    assert is_same(q.value, value)
    assert q.ToText() == p.ToText()


@pytest.mark.parametrize('value', [np.float32(0.1), np.float64('inf'), np.int64(-3), np.bool_(True), np.str_("it's")])
def test_numpy_scalars_are_read_as_python_values(value):
    assert is_same(holding(None).FromText(holding(value).ToText()).value, value.item())


def test_values_without_text_stay_as_they_are():
    values = [threading.Lock(), np.zeros(3), 1j, lambda: 0, {1, 2}, Color.RED, np.dtype('float32')]
    p = holding(list(values))
    p.FromText(p.ToText())
    assert all(value is old for value, old in zip(p.value, values))
    with pytest.raises(ValueError, match='lock'):
        holding(None).FromText(p.ToText())


# ---- the format -----------------------------------------------------------------------------------------------------


def test_text_looks_like_lingvos():
    p = hyperparams.Params()
    p.Define('tau', False, '')
    p.Define('inner', Dense.Params(), '')
    p.Define('dtype', tf.float32, '')
    p.Define('dict', {'b': [1, 'x'], 'a': None}, '')
    p.Define('layers', [holding(i) for i in range(11)], '')
    p.Define('text', 'two\n"lines"', '')
    p.Define('quoted', "it's \\", '')
    p.Define('function', activation, '')
    p.Define('scale', 1e-05, '')
    layers = ''.join(f'layers[{i}].value : {i}\n' for i in range(11))
    assert p.ToText() == rf"""dict : {{'a': None, 'b': [1, 'x']}}
dtype : float32
function : type/{__name__}/activation
inner.activation : NoneType
inner.cls : type/{__name__}/Dense
inner.units : 10
{layers}quoted : "it's \\"
scale : 1e-05
tau : False
text : 'two\n"lines"'
"""
    assert holding([Dense.Params()]).ToTextWithTypes().endswith("""

value : list[1]
value[0].activation : NoneType
value[0].cls : type
value[0].units : int
""")


@pytest.mark.parametrize('text', [
    'value', ': 1', '1value : 2', 'value : "open', "value : 'a' b", 'value[ : 1'])
def test_malformed_text_is_a_value_error(text):
    with pytest.raises(ValueError):
        holding('').FromText(text)


def test_types_override_the_type_of_the_present_value():
    p = holding('1')
    assert is_same(p.FromTextWithTypes('value : 2\n\n\nvalue : int\n').value, 2)
    with pytest.raises(ValueError, match='has no types'):
        p.FromTextWithTypes('value : 1\n')


def test_a_line_for_another_class_brings_the_fields_of_that_class():
    p = holding(Dense.Params().Set(units=99))
    p.FromText(f'value.kernel_size : (5, 5)\nvalue.cls : type/{__name__}/Conv')
    assert p.value == Conv.Params().Set(units=99, kernel_size=(5, 5))


def test_params_are_made_where_there_were_none():
    p = holding(None).FromText(f'''
        value.child.units : 3
        value.child.cls : type/{__name__}/Dense
        value.cls : type/{__name__}/Conv''')
    assert p.value == Conv.Params().Set(child=Dense.Params().Set(units=3))


# ---- overrides ------------------------------------------------------------------------------------------------------


def overridable():
    p = hyperparams.Params()
    p.Define('flag', True, '')
    p.Define('steps', 100, '')
    p.Define('rate', 0.5, '')
    p.Define('name', 'net', '')
    p.Define('ends', [1, 2], '')
    p.Define('limit', None, '')
    p.Define('dtype', tf.float32, '')
    p.Define('task', Dense.Params(), '')
    p.Define('shape', (1, 2), '')
    return p


@pytest.mark.parametrize(('text', 'path', 'value'), [
    ("steps='7'", 'steps', 7), ('steps : -1_000', 'steps', -1000), ('steps=None', 'steps', None),
    ('rate=2', 'rate', 2.0), ('rate=-inf', 'rate', -math.inf), ('flag=false', 'flag', False),
    ('name=two words', 'name', 'two words'), ("name='a;b=c: d\\'#'", 'name', "a;b=c: d'#"),
    ('name=', 'name', ''), ('name=[a-z]*', 'name', '[a-z]*'), ('name=4', 'name', 4), ("name='4'", 'name', '4'),
    ('ends=(2,)', 'ends', (2,)), ('ends=[a, b]', 'ends', ['a', 'b']),
    ("ends=['a;b', {'c;': 1}]", 'ends', ['a;b', {'c;': 1}]),
    ('limit=relu', 'limit', 'relu'), ('limit=3.5', 'limit', 3.5), ('limit=true', 'limit', True),
    ('dtype=bfloat16', 'dtype', tf.bfloat16), ("dtype='half'", 'dtype', tf.float16),
    ('task.units=3', 'task.units', 3), ('shape=[4]', 'shape', [4])])
def test_override_is_read_as_the_field_needs_it(text, path, value):
    p = hyperparams.ApplyOverrides(overridable(), text)
    assert is_same(p.Get(path), value)
    changed = overridable().Set(**{path: value})
    assert p == changed


def test_overrides_are_separated_by_semicolons_or_newlines():
    text = ' steps=1;; rate : 2 ;\n# name=x; flag=no\nname="a;\\nb"; task.units=4 '
    p = hyperparams.ApplyOverrides(overridable(), text)
    assert (p.steps, p.rate, p.name, p.flag, p.task.units) == (1, 2.0, 'a;\nb', True, 4)


@pytest.mark.parametrize(('text', 'error', 'message'), [
    ('steps=1e6', ValueError, r'^steps : 1e6 is not an int; write 1000000\.$'),
    ('steps=True', ValueError, r'^steps : True is not an int'),
    ('rate=fast', ValueError, r'^rate : fast is not a float; write a number'),
    ('flag=1', ValueError, r'^flag : 1 is not a bool; write True or False\.$'),
    ('dtype=float31', ValueError, r'^dtype : float31 is not the name of a dtype'),
    ('steps', ValueError, r"^'steps' is not of the form <key> = <value> or <key> : <value>"),
    ('task.unit=1', AttributeError, r'^task.unit is not a parameter; did you mean task.units or task\?$'),
    ('task=1', ValueError, r'^task : 1 cannot stand where Params do'),
    ('ends[7]=1', AttributeError, r'^ends\[7\] is not a parameter'),
    ('ends=[1', ValueError, r"^ends : \[1 cannot be read \('\[' was never closed\)"),
    ('ends=[a b]', ValueError, r'^ends : \[a b\] cannot be read; put commas between values'),
    ('ends={[1]: 2}', ValueError, r'^ends : .* cannot be read \(unhashable type')])
def test_wrong_override_says_what_is_allowed(text, error, message):
    p = overridable()
    with pytest.raises(error, match=message):
        hyperparams.ApplyOverrides(p, text)
    assert p == overridable()


# ---- safety ---------------------------------------------------------------------------------------------------------

ATTACKS = [
    'type/os/system', 'type/builtins/eval', 'type/subprocess/Popen', f'type/{__name__}/os',
    "__import__('os').system('touch {target}')", "[__import__('os').system('touch {target}')]",
    "open('{target}', 'w')", "{{'a': open('{target}', 'w')}}", "(lambda: open('{target}', 'w'))()", "f'{{open(1)}}'",
    '!!python/object/apply:os.system ["touch {target}"]', "cos\nsystem\n(S'touch {target}'\ntR.",
    'proto/os/system/touch {target}', 'Color.__class__', 'Color.mro', f'type/{__name__}/Color.__subclasses__',
    '9**9**9', "'a' * 10**10", '[0] * 10**10', '{open(1)}']


@pytest.mark.parametrize('attack', ATTACKS)
@pytest.mark.parametrize('before', [None, [1], Dense, activation, Color.RED, 3, tf.float32, Dense.Params()])
def test_what_a_text_names_is_never_run(attack, before, tmp_path):
    target = tmp_path / 'target'
    text = 'value : ' + attack.replace('{target}', str(target)).replace('{{', '{').replace('}}', '}')
    p = holding(before)
    with pytest.raises((ValueError, AttributeError)):
        p.FromText(text)
    assert not target.exists()
    assert p == holding(before)


def test_the_error_for_an_unknown_class_says_how_to_allow_it():
    with pytest.raises(ValueError, match=r'value : type/.*/Dens names nothing .*RegisterType.* mean type/.*/Dense'):
        holding(None).FromText(f'value : type/{__name__}/Dens')


def test_a_class_that_the_params_hold_needs_no_registration():
    class Local:
        pass

    p = hyperparams.Params()
    p.Define('deep', [{'k': (Local,)}], '')
    p.Define('value', None, '')
    key = f'{__name__}/test_a_class_that_the_params_hold_needs_no_registration.<locals>.Local'
    assert p.FromText(f'value : type/{key}').value is Local


def test_two_objects_of_one_name_are_not_confused():
    first, second = [lambda number=number: number for number in range(2)]
    p = holding([first, second])
    assert p.Copy().FromText(p.ToText()) == p
    p.Define('other', None, '')
    with pytest.raises(ValueError, match='names 2 different objects'):
        p.FromText('other ' + p.ToText().splitlines()[1][len('value '):].replace('[', '').split(',')[0])


def test_module_needs_neither_tensorflow_nor_keras_nor_numpy():
    code = ("import sys; from lingpipe import hyperparams as h; p = h.Params(); p.Define('a', [1, len, 1.5], ''); "
            "p.Copy().FromText(p.ToText()); print({'tensorflow', 'keras', 'numpy'} & sys.modules.keys())")
    folder = os.path.dirname(os.path.dirname(hyperparams.__file__))
    result = subprocess.run([sys.executable, '-c', code], cwd=folder, capture_output=True, text=True, check=True)
    assert result.stdout == 'set()\n'
