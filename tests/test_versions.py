"""The version of LingPipe is the same wherever it stands."""

import pathlib
import runpy

import setuptools
import yaml

import lingpipe

_ROOT = pathlib.Path(__file__).parents[1]


def test_every_file_names_the_version_of_the_package(monkeypatch):
    given = {}
    monkeypatch.setattr(setuptools, 'setup', lambda **fields: given.update(fields))
    runpy.run_path(str(_ROOT / 'setup.py'))
    citation = yaml.safe_load((_ROOT / 'CITATION.cff').read_text('utf-8'))
    assert given['version'] == citation['version'] == lingpipe.__version__
    assert f'\n## {lingpipe.__version__}\n' in (_ROOT / 'CHANGELOG.md').read_text('utf-8')
