"""Every python block of these pages runs, in order, as one program a page."""

import pathlib
import re

import pytest

DOCS = pathlib.Path(__file__).parents[1] / 'docs'


@pytest.mark.parametrize('page', ['from_keras.md', 'from_lingvo.md'])
def test_the_programs_of_the_page_run(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text, names = (DOCS / page).read_text(encoding='utf-8'), {'__name__': page.partition('.')[0]}
    blocks = list(re.finditer(r'^```python\n(.*?)^```', text, re.DOTALL | re.MULTILINE))
    assert len(blocks) >= 3
    for block in blocks:
        lines_before = text.count('\n', 0, block.start(1))
        exec(compile('\n' * lines_before + block.group(1), DOCS / page, 'exec'), names)
    assert capsys.readouterr().out


@pytest.mark.parametrize('page', sorted(DOCS.glob('*.md')), ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r'\]\((?!https?:)([^)#]+)', page.read_text(encoding='utf-8')):
        assert (page.parent / target).exists(), target
