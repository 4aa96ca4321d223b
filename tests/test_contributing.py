"""Every recipe of CONTRIBUTING.md runs: its file, then its use."""

import pathlib
import re
from unittest import mock

import pytest

from lingpipe import schedules

_PAGE = pathlib.Path(__file__).parents[1] / 'CONTRIBUTING.md'
_TEXT = _PAGE.read_text(encoding='utf-8')
_RECIPES = {title: re.findall(r'^```python\n(.*?)^```', section, re.DOTALL | re.MULTILINE)
            for title, section in re.findall(r'^## (.*?)\n(.*?)(?=^## |\Z)', _TEXT, re.DOTALL | re.MULTILINE)}


@pytest.mark.parametrize('title', [title for title, blocks in _RECIPES.items() if blocks])
def test_a_recipe_runs(title):
    file, use = _RECIPES[title]
    assert re.match(r'# lingpipe/\w+/\w+\.py\n"""', file)
    names = {'__name__': 'recipe'}
    with mock.patch.dict(schedules.SCHEDULES), mock.patch.dict(schedules.NUM_VIRTUAL_STAGES):
        exec(compile(file, _PAGE, 'exec'), names)
        exec(compile(use, _PAGE, 'exec'), names)


def test_every_folder_of_a_recipe_is_there():
    files = [blocks[0].split('\n', 1)[0].removeprefix('# ') for blocks in _RECIPES.values() if blocks]
    assert len(files) >= 5 and all((_PAGE.parent / file).parent.is_dir() for file in files)
