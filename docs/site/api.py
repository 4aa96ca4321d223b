"""Pages of the API: a page a package, filled by mkdocstrings from docstrings."""

import ast

import source

import lingpipe

_PACKAGES = {
    'params': ('lingpipe.hyperparams', 'lingpipe.base_model_params', 'lingpipe.model_registry'),
    'layers': ('lingpipe.layers.',), 'models': ('lingpipe.models.',), 'input': ('lingpipe.input.',),
    'schedules': ('lingpipe.schedules.',), 'optimizers': ('lingpipe.optimizers.',), 'training': ('lingpipe.training.',)}
_INHERITED = '\n    options:\n      inherited_members: true'  # classes of LingPipe have bases in other modules


def pages() -> dict[str, str]:
    """Return {path: Markdown} of the pages of the API."""
    names = [f'{home}.{name}{_INHERITED}' for name, home in lingpipe._HOMES.items()]
    pages = {'reference/api/lingpipe.md': _page('The package lingpipe', names)}
    for package, prefixes in _PACKAGES.items():
        modules = [module.name for module in source.modules().values()
                   if _is_of(module.name, prefixes) and _has_public_names(module)]
        pages[f'reference/api/{package}.md'] = _page(package.capitalize(), modules)
    return pages


def _page(title, names):
    return f'# {title}\n\n' + '\n\n'.join(f'::: {name}' for name in names) + '\n'


def _is_of(name, prefixes):
    """Return whether a module is one of those, or in a package whose name ends in a dot, and is on no other page."""
    is_exported = name in lingpipe._HOMES.values()
    return not is_exported and any(
        name == prefix or prefix.endswith('.') and name.startswith(prefix) for prefix in prefixes)


def _has_public_names(module):
    return any(isinstance(node, (ast.ClassDef, ast.FunctionDef)) and not node.name.startswith('_')
               for node in module.tree.body)
