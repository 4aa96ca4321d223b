import pathlib
import sys
import textwrap

import pytest

from lingpipe import model_registry

HEADER = """\
from lingpipe import base_model_params, hyperparams, model_registry


def made(name, value):
    p = hyperparams.Params()
    p.Define(name, value, '')
    return p


class Base(base_model_params.SingleTaskModelParams):
    SIZE = 1

    def Train(self):
        return made('split', 'train')

    def Task(self):
        p = made('size', self.SIZE)
        p.Define('train', made('max_steps', 10), '')
        p.Define('eval', made('samples', 5), '')
        return p

"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A current folder of its own, with no experiment known, no module of it imported, and no `params` elsewhere."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, 'path', [path for path in sys.path if path and not pathlib.Path(path, 'params').is_dir()])
    # An editable installation finds packages by a class of its own.
    monkeypatch.setattr(sys, 'meta_path', [
        finder for finder in sys.meta_path if getattr(finder, '__name__', '') != '_EditableFinder'])
    monkeypatch.setattr(model_registry, '_registered', {})
    monkeypatch.setattr(model_registry, '_BUNDLED_MODELS', tmp_path / 'bundled/params')
    before = dict(sys.modules)
    for name in [name for name in sys.modules if name.split('.')[0] == 'params']:
        del sys.modules[name]
    yield tmp_path
    sys.modules.clear()
    sys.modules.update(before)


def write(folder, path, text):
    file = folder / path
    file.parent.mkdir(parents=True, exist_ok=True)
    for parent in file.relative_to(folder).parents[:-1]:
        (folder / parent / '__init__.py').touch()
    file.write_text(HEADER + textwrap.dedent(text))


def experiments(*names, default=None):
    decorator = '@model_registry.RegisterSingleTaskModel\n'
    classes = [f'{decorator}class {name}(Base):\n    SIZE = {len(name)}\n' for name in names]
    return ''.join(classes) + (f'DEFAULT = {default}\n' if default else '')


def test_key_is_module_and_class(folder):
    write(folder, 'params/vision.py', experiments('Net', 'DeepNet'))
    cls = model_registry.GetClass('params.vision.DeepNet')
    assert (cls.__name__, cls.SIZE) == ('DeepNet', 7)
    assert model_registry.GetClass('params.vision.DeepNet') is cls


def test_get_params_joins_model_and_dataset(folder):
    write(folder, 'params/vision.py', experiments('Net'))
    p = model_registry.GetParams('params.vision.Net', 'Train')
    assert p.ToText() == "eval.samples : 5\ninput.split : 'train'\ntask.size : 3\ntrain.max_steps : 10\n"


def test_a_package_may_import_its_experiment_from_its_module(folder):
    write(folder, 'mypackage/exp.py', experiments('Net'))
    write(folder, 'mypackage/__init__.py', 'from mypackage.exp import Net\n')
    assert model_registry.GetClass('mypackage').__name__ == 'Net'


def test_module_written_after_a_failed_look_up_is_found(folder):
    write(folder, 'params/a.py', experiments('Net'))
    with pytest.raises(LookupError):
        model_registry.GetClass('params.b.Net')
    write(folder, 'params/b.py', experiments('Net'))
    assert model_registry.GetClass('params.b.Net').__module__ == 'params.b'


def test_experiments_that_a_loop_makes_are_found(folder):
    write(folder, 'params/made.py', experiments('Base') + '''
for number in (2, 4):
    model_registry.RegisterSingleTaskModel(type(f'Base{number}', (Base,), {'__module__': __name__}))
''')
    assert model_registry.GetClass('params.made.Base4').__name__ == 'Base4'


def test_module_stands_for_its_default_or_only_experiment(folder):
    write(folder, 'params/one.py', experiments('Net'))
    write(folder, 'params/two.py', experiments('Net', 'DeepNet', default='DeepNet'))
    write(folder, 'params/importing.py', 'from params.two import Net, DeepNet\n' + experiments('Own'))
    assert model_registry.GetClass('params.one').__name__ == 'Net'
    assert model_registry.GetClass('params.two').__name__ == 'DeepNet'
    assert model_registry.GetClass('params.importing').__name__ == 'Own'


def test_module_without_a_default_lists_its_experiments(folder):
    write(folder, 'params/two.py', experiments('Net', 'DeepNet'))
    write(folder, 'params/wrong.py', experiments('Net', default='Base'))
    for name, experiments_of in [('two', 'params.two.DeepNet, params.two.Net'), ('wrong', 'params.wrong.Net')]:
        with pytest.raises(LookupError, match=f'params.{name} has no DEFAULT .* name one of {experiments_of}'):
            model_registry.GetClass(f'params.{name}')


@pytest.mark.parametrize(('name', 'offered'), [
    *[(name, 'did you mean params.vision.DeepNet')
      for name in ('params.vison.DeepNet', 'vision.DeepNet', 'params.vision.DeepNet.SIZE')],
    ('unlistd', 'did you mean unlisted?'),
    *[(name, 'did you mean params.vision') for name in ('params.visionn', 'params.vision.made', 'params..vision')],
    *[(name, 'the nearest of 9 are: ') for name in ('nothing_like_it', '', '.', 'os.path.join.x')]])
def test_wrong_name_offers_the_nearest_of_modules_and_experiments(folder, name, offered):
    write(folder, 'params/vision.py', experiments('Net', 'DeepNet', default='Net'))
    write(folder, 'params/text.py', experiments('Transformer', *'ABC'))
    write(folder, 'unlisted.py', experiments('Net'))
    with pytest.raises(LookupError) as error:
        model_registry.GetClass(name)
    message = str(error.value)
    assert message.startswith(f'There is no model {name!r}; {offered}') and message.endswith(
        ' --mode=list shows the models of params; a module of the current folder has its own name.')
    assert message.count('params.') - name.count('params.') <= 5


def test_a_module_without_a_registered_class_is_refused_with_the_remedy(folder):
    write(folder, 'forgotten.py', 'from lingpipe import base_model_params\n\n\n'
          'class Net(base_model_params.SingleTaskModelParams):\n    pass\n')
    with pytest.raises(LookupError, match='forgotten .* has no model: .* under @model_registry.Register'):
        model_registry.GetClass('forgotten')
    (folder / 'nothing_here.py').write_text('')
    with pytest.raises(LookupError, match='nothing_here .* has no model: .* `lingpipe new` writes one'):
        model_registry.GetClass('nothing_here')


@pytest.mark.parametrize(('text', 'error', 'message'), [
    ('import no_such_library\n', ModuleNotFoundError, 'no_such_library'),
    ('import params.no_such\n', ModuleNotFoundError, 'no_such'),
    ('from params import nothing\n', ImportError, 'nothing'), ('1 / 0\n', ZeroDivisionError, 'division'),
    ('class :\n', SyntaxError, 'invalid syntax')])
def test_error_of_the_users_module_is_shown_as_it_is(folder, text, error, message):
    write(folder, 'params/broken.py', text)
    with pytest.raises(error, match=message):
        model_registry.GetClass('params.broken.Net')


def test_list_models_reports_broken_modules_and_hides_no_other(folder):
    write(folder, 'params/vision.py', experiments('Net'))
    write(folder, 'params/deep/text.py', experiments('Transformer'))
    write(folder, 'params/broken.py', 'import no_such_library\n')
    write(folder, 'params/leaving.py', 'raise SystemExit(3)\n')
    listing = model_registry.ListModels()
    assert sorted(listing.models) == ['params.deep.text.Transformer', 'params.vision.Net']
    assert {name: type(error) for name, error in listing.errors.items()} == {
        'params.broken': ModuleNotFoundError, 'params.leaving': SystemExit}


@pytest.mark.parametrize('is_package', [True, False])
def test_own_params_stand_beside_the_bundled_ones_and_go_first(folder, is_package):
    write(folder, 'bundled/params/vision.py', experiments('Net'))
    write(folder, 'bundled/params/text.py', experiments('Transformer'))
    write(folder, 'params/own.py', experiments('Own'))
    write(folder, 'params/vision.py', experiments('MyNet'))
    if not is_package:
        (folder / 'params/__init__.py').unlink()
    assert model_registry.GetClass('params.own').__name__ == 'Own'
    assert model_registry.GetClass('params.vision').__name__ == 'MyNet'
    assert model_registry.GetClass('params.text').__name__ == 'Transformer'
    assert {'params.own.Own', 'params.text.Transformer'} <= set(model_registry.ListModels().models)
