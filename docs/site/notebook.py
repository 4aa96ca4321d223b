"""A notebook as a page: its text, its code, and the outputs that are stored in it."""

import json
import pathlib
import re

_DOCS = re.compile(r'\]\(\.\./\.\./docs/')
_NOTEBOOK = re.compile(r'\]\((\w+\.ipynb)\)')


def text(path: pathlib.Path) -> str:
    """Return a notebook of `examples/notebooks/` as Markdown, whose links are those of its page."""
    parts = [part for cell in json.loads(path.read_text('utf-8'))['cells'] for part in _parts(cell)]
    return _NOTEBOOK.sub(r'](\1.md)', _DOCS.sub('](../../../', '\n\n'.join(parts))) + '\n'


def _parts(cell):
    source = ''.join(cell['source'])
    if cell['cell_type'] == 'markdown':
        return [source]
    return [f'```python\n{source}\n```', *map(_output, cell['outputs'])]


def _output(output):
    data = {kind: ''.join(content) for kind, content in output.get('data', {}).items()}
    if 'image/png' in data:
        content = data['image/png'].replace('\n', '')
        return f'![output](data:image/png;base64,{content})'
    return f'```text\n{"".join(output.get("text", data.get("text/plain", ""))).rstrip()}\n```'
