"""The pages that are no files of docs/: those read from the source, and copies of files outside of it."""

import re

import api
import errors_page
import notebook
import reference
import source

_OUTSIDE = re.compile(r'\]\((?:\.\./)+([^)#]+)(#[^)]*)?\)')


def generated() -> dict[str, str]:
    """Return {path: Markdown} of the pages that are read from the source."""
    return {'reference/flags.md': reference.flags_text(), 'reference/params.md': reference.params_text(),
            'reference/errors.md': errors_page.text(), **api.pages(), **_copies()}


def _copies():
    """Pages of the files of the root, and of examples, notebooks, manifests and results that pages link to."""
    pages = {f'project/{name.lower()}': _without_folder(name)
             for name in ('CHANGELOG.md', 'CONTRIBUTING.md', 'SECURITY.md')}
    for path in [*source.ROOT.glob('examples/*.py'), *source.ROOT.glob('deploy/*/*'),
                 *source.ROOT.glob('benchmarks/results/*.csv')]:
        name = path.relative_to(source.ROOT)
        language = {'.py': 'python', '.yaml': 'yaml', '.csv': 'text'}.get(path.suffix, 'dockerfile')
        pages[f'files/{name}.md'] = f'# {name}\n\n```{language}\n{path.read_text("utf-8")}```\n'
    for path in source.ROOT.glob('examples/notebooks/*.ipynb'):
        pages[f'files/{path.relative_to(source.ROOT)}.md'] = notebook.text(path)
    links = [f'* [{path.name}](docker/{path.name}.md)' for path in sorted(source.ROOT.glob('deploy/docker/*'))]
    return pages | {'files/deploy/docker.md': '\n'.join(['# deploy/docker', '', *links, ''])}


def _without_folder(name):
    return re.sub(r'\]\(docs/', '](../', (source.ROOT / name).read_text('utf-8'))


def with_links_to_copies(markdown: str, path: str) -> str:
    """Return a page in which links to files outside of docs/ lead to their copies.

    Args:
        markdown: its text.
        path: its path below docs/.
    """
    folder = (source.ROOT / 'docs' / path).parent

    def leads_to(match):
        target = (folder / match[0][2:].partition(')')[0].partition('#')[0]).resolve()
        if not target.is_relative_to(source.ROOT) or target.is_relative_to(source.ROOT / 'docs') or not target.exists():
            return match[0]
        name = target.relative_to(source.ROOT)
        copy = f'project/{str(name).lower()}' if name.suffix == '.md' else f'files/{name}.md'
        return f']({"../" * path.count("/")}{copy}{match[2] or ""})'

    return _OUTSIDE.sub(leads_to, markdown)
