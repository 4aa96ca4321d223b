"""Texts of params that an earlier version wrote, as they lie in log directories, are still read."""

import json
import lzma
import pathlib

import pytest

from lingpipe import model_registry

RECORDED = json.loads(lzma.open(pathlib.Path(__file__).with_name('recorded_params.json.xz')).read())  # name -> text


def _has(params, path):
    try:
        params.Get(path)
    except (AttributeError, IndexError):
        return False
    return True


@pytest.mark.parametrize('name', RECORDED)
def test_every_line_of_a_recorded_text_is_read_as_it_was_written(name):
    params = model_registry.GetParams(name, 'Test')  # so that some lines change a value
    lines = [line for line in RECORDED[name].splitlines() if _has(params, line.partition(' : ')[0])]
    assert len(lines) > 0.9 * len(RECORDED[name].splitlines())  # the other fields are gone
    assert set(lines) <= set(params.FromText('\n'.join(lines)).ToText().splitlines())
