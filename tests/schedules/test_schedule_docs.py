"""docs/schedules.md shows what the commands and programs in it print."""

import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]
PAGE = (ROOT / 'docs/schedules.md').read_text(encoding='utf-8')
RUN_COMMANDS = '''
import json, sys
from absl import flags
from absl.testing import flagsaver
from benchmarks.speed import schedules
for arguments in json.loads(sys.argv[1]):
    with flagsaver.flagsaver():
        flags.FLAGS(['schedules', *arguments])
        schedules.main(None)
        print('=====')
'''


def test_the_tables_and_drawings_are_what_the_commands_print():
    blocks = re.findall(r'```\n\$ python -m benchmarks\.speed\.schedules (.*)\n([^`]*)\n```', PAGE)
    assert len(blocks) == 5
    arguments = json.dumps([command.split() for command, _ in blocks])
    finished = subprocess.run([sys.executable, '-c', RUN_COMMANDS, arguments], cwd=ROOT, check=True,
                              capture_output=True, text=True)
    assert [printed.strip() for printed in finished.stdout.split('=====\n')[:-1]] == [shown for _, shown in blocks]


def test_the_programs_run_as_pasted(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for program in re.findall(r'<!-- run -->\n```python\n(.*?)```', PAGE, re.DOTALL):
        exec(compile(program, 'docs/schedules.md', 'exec'), {})
    printed = capsys.readouterr().out
    assert '0F0,0F1,0B0,0W0,0F2,0B1,0W1,0B2,0W2' in printed
    assert 'device 1 waits at position 2, 1B0, for 1F0' in printed
    shown, = re.findall(r'<!-- run -->\n```python\n[^`]*```\n\n```\n(.*?)```', PAGE, re.DOTALL)
    assert shown in printed
