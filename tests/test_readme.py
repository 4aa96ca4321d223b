"""Every block of README runs, from top to bottom, in one folder."""

import pathlib
import re
import shlex

import pytest

from tests import forked_programs

ROOT = pathlib.Path(__file__).parents[1]
README = (ROOT / 'README.md').read_text(encoding='utf-8')
_INSTALLING = ('train-command', 'test-command')  # .ci/run runs the second, .ci/wheel the same training


def code_after(marker):
    return re.search(rf'<!-- {marker} -->\n```\w+\n(.*?)```', README, re.DOTALL).group(1)


def blocks(language):
    """Return the blocks of a language but those that install."""
    found = re.findall(rf'^```{language}\n(.*?)^```', README, re.DOTALL | re.MULTILINE)
    return [block for block in found if block not in [code_after(marker) for marker in _INSTALLING]]


def start(words, folder):
    code, out, err = forked_programs.run(words, folder)
    assert code == 0, err
    return out


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """Where `my_model.py` of README is."""
    folder = tmp_path_factory.mktemp('readme')
    (folder / 'my_model.py').write_text(code_after('new-model'))
    return folder


def test_new_model_of_readme_trains_as_pasted(folder):
    out = start([ROOT / 'run.py', '--model=my_model', '--mode=train', '--logdir=logs/pasted'], folder)
    accuracy = float(re.search(r'Final Test after 200 steps: .*accuracy ([\d.]+) %', out).group(1))
    assert accuracy > 80
    assert re.search(r'^ +1  CPU:1', out, re.MULTILINE), 'the second partition is on the second device'


def test_python_of_readme_runs_as_pasted(folder):
    program, = [block for block in blocks('python') if block != code_after('new-model')]
    start(['-c', program], folder)
    assert (folder / 'resnet50.keras').is_file()


@pytest.mark.parametrize('command', [line for block in blocks('sh') for line in block.splitlines()])
def test_a_command_of_readme_runs(command, folder):
    first, *others = shlex.split(command)
    start(others if first == 'python' else ['-m', first, *others], folder)


def test_commands_of_readme_install_and_run_in_environments_of_their_own():
    train, test = code_after('train-command'), code_after('test-command')
    assert train.startswith('python3 -m venv .venv &&') and 'lingpipe train --model=params.amoebanet ' in train
    assert test.startswith('python3 -m venv .venv-test &&') and test.rstrip().endswith('-m pytest')
