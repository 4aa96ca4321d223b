"""Pinned packages, the ranges of setup.py, and those that `lingpipe.doctor` knows."""

import pathlib
import runpy

import pytest
import setuptools
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import lingpipe
from lingpipe import doctor

_ROOT = pathlib.Path(__file__).parents[1]
_FILES = ('gpu', 'oldest', 'tpu')


def pins(file):
    lines = (_ROOT / f'requirements/{file}.txt').read_text('utf-8').splitlines()
    pairs = [line.split('==') for line in lines if not line.startswith('#')]
    return {canonicalize_name(name): Version(version) for name, version in pairs}


@pytest.fixture
def given(monkeypatch):
    """Return what setup.py gives to setuptools."""
    fields = {}
    monkeypatch.setattr(setuptools, 'setup', fields.update)
    runpy.run_path(str(_ROOT / 'setup.py'))
    return fields


@pytest.fixture
def required(given):
    """Return {name: range} of what setup.py requires."""
    requirements = map(Requirement, given['install_requires'])
    return {canonicalize_name(requirement.name): requirement.specifier for requirement in requirements}


@pytest.mark.parametrize('file', _FILES)
def test_pins_are_all_that_setup_requires_in_its_ranges(file, required):
    found = pins(file)
    if file == 'tpu':
        required['tensorflow-tpu'] = required.pop('tensorflow')
        assert 'tensorflow' not in found, 'which would overwrite tensorflow-tpu'
    assert {name: found[name] for name, versions in required.items() if found[name] not in versions} == {}


@pytest.mark.parametrize('name, tested', [('tensorflow', doctor.TENSORFLOW_VERSIONS), ('keras', doctor.KERAS_VERSIONS)])
def test_doctor_knows_the_range_of_setup(name, tested, required):
    (major, lowest), (_, highest) = tested
    inside = [minor for minor in range(highest + 3) if Version(f'{major}.{minor}.99') in required[name]]
    assert inside == list(range(lowest, highest + 1))


def test_the_ends_of_the_range_are_pinned():
    oldest, newest = (pins(file)['tensorflow'].release[:2] for file in ('oldest', 'gpu'))
    assert (oldest, newest) == doctor.TENSORFLOW_VERSIONS


def test_pages_name_the_pinned_versions():
    page, found = (_ROOT / 'docs/cloud_tpu.md').read_text('utf-8'), pins('tpu')
    assert (f'`tensorflow-tpu` {found["tensorflow-tpu"]}, the newest on PyPI (November 2026); libtpu {found["libtpu"]}; '
            f'Keras {found["keras"]}') in page
    assert f"`pip install 'libtpu=={found['libtpu']}'`" in page


def test_every_file_names_the_version_of_the_package(given):
    citation = yaml.safe_load((_ROOT / 'CITATION.cff').read_text('utf-8'))
    assert given['version'] == citation['version'] == lingpipe.__version__
    assert f'\n## {lingpipe.__version__}\n' in (_ROOT / 'CHANGELOG.md').read_text('utf-8')
