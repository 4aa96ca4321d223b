"""Errors of a user's own files, with their line, and those of LingPipe in their own words."""

import pathlib
import sys

import pytest

from lingpipe import hyperparams
from lingpipe.command_line import user_errors

_LINES = {
    "{'a': 1}['units']": "KeyError: 'units'", 'assert False': 'AssertionError', '1 / 0': 'ZeroDivisionError: division by zero',
    'import none_such': "ModuleNotFoundError: No module named 'none_such'",
    "p.Set(unit=1)": 'unit is not a parameter', 'int("a")': "ValueError: invalid literal for int() with base 10: 'a'"}


@pytest.mark.parametrize('line', _LINES)
def test_an_error_of_a_users_file_has_its_line(tmp_path, monkeypatch, line):
    (tmp_path / 'my_model.py').write_text(f'def Task(p):\n    {line}\n')
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, 'my_model', raising=False)
    monkeypatch.setattr(user_errors, '_INSTALLED', (*user_errors._INSTALLED, str(pathlib.Path(__file__).parent)))
    import my_model
    p = hyperparams.Params()
    p.Define('units', 1, 'Number of units.')
    with pytest.raises(Exception) as caught:
        my_model.Task(p)
    assert user_errors.in_words(caught.value).startswith(_LINES[line])
    assert user_errors.place(caught.value) == f'{tmp_path}/my_model.py, line 2: {line}'


def test_an_error_of_lingpipe_has_no_place(monkeypatch):
    monkeypatch.setattr(user_errors, '_INSTALLED', (str(pathlib.Path(__file__).parent),))
    with pytest.raises(AttributeError) as caught:
        hyperparams.Params().Set(unit=1)
    assert user_errors.place(caught.value) == '' and not user_errors.in_words(caught.value).startswith('Attr')
