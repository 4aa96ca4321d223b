"""docs/balancing.md shows what the program in it prints."""

import pathlib
import re

PAGE = (pathlib.Path(__file__).parents[2] / 'docs/balancing.md').read_text(encoding='utf-8')


def test_the_program_prints_what_is_shown(capsys):
    (program, shown), = re.findall(r'<!-- run -->\n```python\n(.*?)```\n\n```\n(.*?)```', PAGE, re.DOTALL)
    exec(compile(program, 'docs/balancing.md', 'exec'), {})
    assert capsys.readouterr().out == shown
