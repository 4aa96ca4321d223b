"""The registry of experiments, with names such as `params.amoebanet.AmoebaNetD`.

A decorator registers a class when the module of the class is imported. `GetClass` imports the module of a name:

    @model_registry.RegisterSingleTaskModel
    class AmoebaNetD(base_model_params.SingleTaskModelParams):
        ...
"""

import importlib
import os
import pathlib
import pkgutil
import sys
from typing import NamedTuple, TypeVar

from lingpipe import base_model_params, hyperparams, wording

_MODELS_PACKAGE = 'params'
_BUNDLED_MODELS = pathlib.Path(__file__).parents[1] / _MODELS_PACKAGE  # in a clone as in site-packages
_registered: dict[str, type[base_model_params.SingleTaskModelParams]] = {}  # 'module.Class' -> class
_ExperimentClass = TypeVar('_ExperimentClass', bound=type[base_model_params.SingleTaskModelParams])


class Listing(NamedTuple):
    """The result of ListModels."""
    models: dict[str, type[base_model_params.SingleTaskModelParams]]  # {key: class}
    errors: dict[str, BaseException]  # {module: exception} of the modules that cannot be imported


def RegisterSingleTaskModel(cls: _ExperimentClass) -> _ExperimentClass:
    """Register an experiment class under its module and name. Use this function as a class decorator.

    Raises:
        TypeError: `cls` is not a subclass of SingleTaskModelParams.
    """
    if not _is_experiment(cls):
        raise TypeError(f'RegisterSingleTaskModel takes a subclass of SingleTaskModelParams, not {cls!r}.')
    _registered[f'{cls.__module__}.{cls.__qualname__}'] = cls
    return cls


def GetClass(name: str) -> type[base_model_params.SingleTaskModelParams]:
    """Return the experiment class of a name. The module may be in the current folder.

    Args:
        name: `module.Class`, or `module`, which means the module's `DEFAULT` or else its only experiment.

    Raises:
        LookupError: there is no such experiment.
        Exception: the import of the module fails.
    """
    if name in _registered:
        return _registered[name]
    module, rest = _import_longest_prefix(name)
    if name in _registered:  # made by a function in its module
        return _registered[name]
    if module is None:
        raise _unknown_error(name)
    if not rest:
        return _default_of(module)
    cls = module
    for part in rest.split('.'):
        cls = getattr(cls, part, None)
    if not _is_experiment(cls):
        raise _unknown_error(name)
    return cls


def _import_longest_prefix(name):
    """Import the longest prefix of `name` that is a module."""
    if os.getcwd() not in sys.path and '' not in sys.path:
        sys.path.insert(0, os.getcwd())
    importlib.invalidate_caches()
    module, parts = None, name.split('.')
    if not all(part.isidentifier() for part in parts):
        return None, name
    for position in range(len(parts)):
        prefix = '.'.join(parts[:position + 1])
        try:
            module = importlib.import_module(prefix)
        except ModuleNotFoundError as error:
            if error.name != prefix:  # the module exists, but a module that it imports does not
                raise
            return module, '.'.join(parts[position:])
        if prefix == _MODELS_PACKAGE and hasattr(module, '__path__'):
            _join_models_packages(module)
    return module, ''


def _join_models_packages(package):
    """Let the package `params` contain the modules of the user and of LingPipe."""
    # Python alone would use only one folder: the folder with an `__init__.py`, or else the first.
    own = os.path.join(os.getcwd(), _MODELS_PACKAGE)
    package.__path__ = list(dict.fromkeys([own, *package.__path__, str(_BUNDLED_MODELS)]))


def _is_experiment(cls):
    return isinstance(cls, type) and issubclass(cls, base_model_params.SingleTaskModelParams)


def _default_of(module):
    imported = {key: cls for key, cls in _registered.items() if cls in vars(module).values()}
    own = {key: cls for key, cls in imported.items() if cls.__module__ == module.__name__} or imported
    only = next(iter(own.values())) if len(own) == 1 else None
    default = getattr(module, 'DEFAULT', only)
    if default in _registered.values():
        return default
    if own:
        raise LookupError(f'{module.__name__} has no DEFAULT that is one of its experiments. Set it, or name one of '
                          f'{", ".join(sorted(own))}.')
    raise LookupError(f'{module.__name__} ({getattr(module, "__file__", None)}) has no model: a class of '
                      'base_model_params.SingleTaskModelParams under @model_registry.RegisterSingleTaskModel. '
                      '`lingpipe new` writes one to start from.')


def _unknown_error(name):
    models = ListModels().models
    here = [path.stem for path in pathlib.Path().glob('*.py')]
    names = [*models, *(key.rpartition('.')[0] for key in models), *here]
    return LookupError(f'There is no model {name!r}{wording.did_you_mean(name, names)} --mode=list shows the models '
                       f'of {_MODELS_PACKAGE}; a module of the current folder has its own name.')


def GetParams(name: str, dataset_name: str) -> hyperparams.Params:
    """Return the Params of an experiment with one of its datasets.

    Args:
        name: see `GetClass`.
        dataset_name: 'Train', 'Dev' or 'Test'.

    Returns:
        Params with the fields `task`, `train`, `eval` and `input`.

    Raises:
        LookupError: there is no such experiment or dataset.
        NotImplementedError: the experiment does not define that dataset.
    """
    experiment = GetClass(name)()
    params = experiment.Model()
    params.Define('input', experiment.GetDatasetParams(dataset_name), f'The input of {dataset_name}.')
    return params


def ListModels() -> Listing:
    """Import all modules of the package `params`. List all experiments and all import errors."""
    errors: dict[str, BaseException] = {}
    package, rest = _import_longest_prefix(_MODELS_PACKAGE)
    if not rest:
        _import_modules(package, errors)
    return Listing(dict(_registered), errors)


def _import_modules(package, errors):
    for info in pkgutil.iter_modules(getattr(package, '__path__', []), package.__name__ + '.'):
        try:
            module = importlib.import_module(info.name)
        except (Exception, SystemExit) as error:
            errors[info.name] = error
        else:
            _import_modules(module, errors)
