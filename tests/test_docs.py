"""The pages of docs/: their python blocks run, in order, as one program a page; their commands run."""

import pathlib
import re
import shlex
import subprocess
import sys

import pytest

from tests import forked_programs, needs

ROOT = pathlib.Path(__file__).parents[1]
DOCS = ROOT / 'docs'
TUTORIALS = [DOCS / name for name in ('start.md', 'troubleshooting.md', 'metrics.md', 'from_keras.md', 'from_lingvo.md')]
BLOCK = re.compile(r'^( *)```(\w+)(?: title="([^"\n]+)")?\n(.*?)^\1```', re.DOTALL | re.MULTILINE)


def _marks_of(page):
    return [needs.keras_hub] if 'params.keras_hub' in page.read_text('utf-8') else []


@pytest.mark.parametrize('page', [pytest.param(page, id=page.stem, marks=_marks_of(page)) for page in TUTORIALS])
def test_the_tutorial_works_from_top_to_bottom(page, tmp_path):
    """In an empty folder: files are written, programs and `sh` blocks run; `console` blocks are for other machines."""
    program = []
    for _, language, title, text in BLOCK.findall(page.read_text('utf-8')):
        if language == 'python' and title:
            (tmp_path / title).write_text(text)
        elif language == 'python':
            program.append(text)
        elif language == 'sh':
            for command in text.splitlines():
                run(words_of(command), tmp_path)
    if program:
        run(['-c', '\n'.join(program)], tmp_path)


def words_of(command):
    """Return the words after 'python' that do what a command of a page does."""
    words = shlex.split(command)
    if words[0] == 'python':
        return words[1:]
    assert words[0] == 'lingpipe', command
    return ['-m', *words]


def run(words, folder):
    """Run a program of Python; a server's or the doctor's own processes need one that is not forked."""
    if words[:2] == ['-m', 'lingpipe.doctor']:
        done = subprocess.run([sys.executable, *words], cwd=folder, env={'PYTHONPATH': str(ROOT)}, text=True,
                              capture_output=True)
        assert 'Traceback' not in done.stderr and 'TensorFlow' in done.stdout
        return
    code, out, err = forked_programs.run(words, folder)
    assert code == 0, (words, out, err)
