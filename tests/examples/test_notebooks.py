"""The notebooks in examples/notebooks/: run again, they show what they show in the project."""

import pathlib

import pytest

nbclient = pytest.importorskip('nbclient')
nbformat = pytest.importorskip('nbformat')
ROOT = pathlib.Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / 'examples/notebooks').glob('*.ipynb'))
VARIES = 'varies'  # tag of cells that show times, or what a processor rounds its own way
SECONDS = 180


def read(path):
    return nbformat.read(path, as_version=4)


def shown(cell):
    """Return the kinds of a cell's outputs, and their text."""
    texts = []
    for output in cell.get('outputs', []):
        if output.output_type == 'stream' and output.name == 'stderr':
            continue  # TensorFlow's log, which tells of the processor
        data = output.get('data', {})
        is_picture = any(kind.startswith('image/') for kind in data)
        texts.append((sorted(data), '' if is_picture else output.get('text') or data.get('text/plain')))
    return texts


@pytest.mark.parametrize('path', NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_shows_what_it_did(path, monkeypatch):
    monkeypatch.setenv('PYTHONPATH', str(ROOT))
    monkeypatch.setenv('TF_CPP_MIN_LOG_LEVEL', '3')
    stored, again = read(path), read(path)
    nbclient.NotebookClient(again, timeout=SECONDS, resources={'metadata': {'path': str(ROOT)}}).execute()
    assert any(cell.get('outputs') for cell in stored.cells)
    for before, after in zip(stored.cells, again.cells, strict=True):
        kinds = [[kind for kind, _ in shown(cell)] for cell in (before, after)]
        assert kinds[0] == kinds[1], before.source
        if VARIES not in before.metadata.get('tags', []):
            assert shown(after) == shown(before), before.source


def test_every_notebook_is_named_in_the_docs():
    docs = (ROOT / 'docs/index.md').read_text('utf-8')
    assert len(NOTEBOOKS) >= 3
    assert all(f'](../examples/notebooks/{path.name})' in docs for path in NOTEBOOKS)
