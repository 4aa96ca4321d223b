"""The generated pages of the site, against what runs: no flag, field or error message is missing."""

import ast
import importlib
import pathlib
import pkgutil
import re
import sys

import pytest
from absl import flags

import lingpipe
from lingpipe import hyperparams
from lingpipe.command_line import run_flags, topics

ROOT = pathlib.Path(__file__).parents[2]
SITE = ROOT / 'docs/site'


@pytest.fixture(scope='module')
def site():
    """Return a function that imports a module of docs/site/."""
    before = set(sys.modules)
    sys.path.insert(0, str(SITE))
    yield importlib.import_module
    sys.path.remove(str(SITE))
    for name in set(sys.modules) - before:
        if pathlib.Path(getattr(sys.modules[name], '__file__', None) or '/').parent == SITE:
            del sys.modules[name]


def rows(text):
    return [line.split(' | ') for line in text.splitlines() if line.startswith('| `')]


def test_every_mode_and_flag_has_a_row_with_its_default(site):
    found = {row[0].strip('| `'): row for row in rows(site('reference').flags_text())}
    for mode in topics.MODES:
        assert mode in found
    for flag in flags.FLAGS.flags_by_module_dict()[run_flags.__name__]:
        row = found[f'--{flag.name}']
        assert row[2] == ('' if flag.default in (None, '') else f'`{flag.default}`'), flag.name


def all_params():
    """Return {class: Params} of all classes of LingPipe whose Params take no argument."""
    found = {}
    for info in pkgutil.walk_packages(lingpipe.__path__, 'lingpipe.'):
        if info.name.endswith('__main__') or 'tpu_compiler_process' in info.name:
            continue
        for value in vars(importlib.import_module(info.name)).values():
            if isinstance(value, type) and value.__module__ == info.name and hasattr(value, 'Params'):
                found[value] = value.Params()
    return found


def test_every_field_of_params_has_a_row(site):
    by_class = {owner.name: {field.name for field in owner.fields} for owner in site('reference').owners()}
    checked = 0
    for cls, params in all_params().items():
        if not isinstance(params, hyperparams.Params):
            continue
        told = set().union(*(by_class.get(base.__name__, set()) for base in cls.__mro__)) | _fields_of_functions(by_class)
        missing = {name for name, _ in params.IterParams()} - told - {'cls'}
        assert not missing, cls
        checked += 1
    assert checked > 30


def _fields_of_functions(by_class):
    return set().union(*(fields for name, fields in by_class.items() if name[0].islower() or name[0] == '_'))


def test_a_field_shows_its_default_and_the_constants_it_names(site):
    text = site('reference').params_text()
    assert re.search(r"^\| `schedule` \| text \| `'gpipe'` \| Order of the actions", text, re.MULTILINE)
    assert "one of 'float32', 'mixed_bfloat16', 'mixed_float16'." in text


def test_every_raise_of_the_source_is_on_the_page_of_errors(site):
    listed = {(error.module, error.line) for error in site('errors_page').errors()}
    expected = set()
    for path in (ROOT / 'lingpipe').rglob('*.py'):
        module = '.'.join(path.relative_to(ROOT).with_suffix('').parts).removesuffix('.__init__')
        tree = ast.parse(path.read_text('utf-8'))
        expected |= {(module, node.lineno) for node in ast.walk(tree) if isinstance(node, ast.Raise) and node.exc}
    assert listed == expected and len(expected) > 400


@pytest.mark.parametrize('sentence', [
    # a plain one, one behind a function, one with branches, one in a name, one of another function
    '--checkpoint and --follow were both given. Give one of them.',
    'There is no model {name}{did_you_mean} --mode=list shows the models of ',
    'is not an int; write digits only.',
    '--tpu={given.tpu} is for --device=tpu only. Add --device=tpu.',
    'RegisterSingleTaskModel takes a subclass of SingleTaskModelParams, not {cls}.'])
def test_a_sentence_shows_what_varies_in_braces(site, sentence):
    assert sentence in site('errors_page').text()


def test_few_errors_are_without_a_sentence(site):
    errors = site('errors_page').errors()
    without = [error for error in errors if not any(' ' in sentence for sentence in error.sentences)]
    assert len(without) < len(errors) / 20, without


def test_links_to_files_outside_lead_to_their_copies(site):
    pages = site('pages')
    generated = pages.generated()
    for path in (ROOT / 'docs').rglob('*.md'):
        name = str(path.relative_to(ROOT / 'docs'))
        for target in re.findall(r'\]\((?!https?:)([^)#]+)', pages.with_links_to_copies(path.read_text('utf-8'), name)):
            place = (path.parent / target).resolve()
            assert place.is_relative_to(ROOT / 'docs'), (name, target)
            assert place.exists() or str(place.relative_to(ROOT / 'docs')) in generated, (name, target)


def test_every_page_stands_in_the_navigation(site):
    navigation = (ROOT / 'mkdocs.yml').read_text('utf-8')
    pages = [str(path.relative_to(ROOT / 'docs')) for path in (ROOT / 'docs').rglob('*.md')]
    generated = [path for path in site('pages').generated() if not path.startswith('files/')]
    assert [page for page in pages + generated if page not in navigation] == []


def test_a_notebook_is_a_page_with_its_outputs(site):
    pages = site('pages').generated()
    page = pages['files/examples/notebooks/quick_start.ipynb.md']
    assert page.startswith('# Quick start') and 'data:image/png;base64,' in page and '<GPipeLayer' in page
    assert '](pipeline.ipynb.md)' in page and 'files/examples/notebooks/pipeline.ipynb.md' in pages
    assert '](../../../planning.md)' in pages['files/examples/notebooks/planner.ipynb.md']
