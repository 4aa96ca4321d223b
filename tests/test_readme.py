import pathlib
import re

from tests import forked_programs

ROOT = pathlib.Path(__file__).parents[1]
README = (ROOT / 'README.md').read_text(encoding='utf-8')


def code_after(marker):
    return re.search(rf'<!-- {marker} -->\n```\w+\n(.*?)```', README, re.DOTALL).group(1)


def test_new_model_of_readme_trains_as_pasted(tmp_path):
    (tmp_path / 'my_model.py').write_text(code_after('new-model'))
    program = forked_programs.ForkedProgram(
        [ROOT / 'run.py', '--model=my_model', '--mode=train', '--logdir=logs/my_model'], {'PYTHONPATH': str(ROOT)},
        tmp_path)
    out, err = program.communicate()
    assert program.returncode == 0, err
    accuracy = float(re.search(r'Final Test after 200 steps: .*accuracy ([\d.]+) %', out).group(1))
    assert accuracy > 80
    assert re.search(r'^ +1  CPU:1', out, re.MULTILINE), 'the second partition is on the second device'


def test_commands_of_readme_install_and_run_in_environments_of_their_own():
    train, test = code_after('train-command'), code_after('test-command')
    assert train.startswith('python3 -m venv .venv &&') and '--model=params.amoebanet --mode=train' in train
    assert test.startswith('python3 -m venv .venv-test &&') and test.rstrip().endswith('-m pytest')
