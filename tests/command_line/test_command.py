"""Modes as sub-commands, whichever way the command is started."""

import pathlib
import sys

import pytest

import lingpipe
from lingpipe import hyperparams
from lingpipe.command_line import command
from tests import forked_programs

ROOT = pathlib.Path(__file__).parents[2]


def outcome(folder, *words):
    code, out, err = forked_programs.run(words, folder, PYTHONPATH=f'{ROOT}:{ROOT}/tests/programs')
    return out, err, code


def test_a_sub_command_does_what_the_mode_does(tmp_path):
    by_flag = outcome(tmp_path, ROOT / 'run.py', '--model=tiny_digits', '--mode=inspect_params')
    assert by_flag[2] == 0 and 'train.max_steps : ' in by_flag[0]
    assert outcome(tmp_path, ROOT / 'run.py', 'inspect_params', '--model=tiny_digits') == by_flag
    assert outcome(tmp_path, '-m', 'lingpipe', 'inspect_params', '--model=tiny_digits') == by_flag


def test_tools_stand_beside_the_modes(tmp_path):
    assert outcome(tmp_path, '-m', 'lingpipe', '--version')[0] == f'lingpipe {lingpipe.__version__}\n'
    out, _, code = outcome(tmp_path, '-m', 'lingpipe', 'doctor')
    assert out.startswith('what') and 'LingPipe would use' in out and (code == 0) == ('Nothing is wrong.' in out)
    out, told, code = outcome(
        tmp_path, '-m', 'lingpipe', 'local_cluster', '--no-isolated', '--', 'python', '-c',
        'import os; print(os.environ["TF_CONFIG"])')
    assert code == 0, out + told
    assert out.count('"chief"') >= 3  # a line of each process


def test_changes_may_be_given_several_times(tmp_path):
    (tmp_path / 'changes').write_text('train.max_steps : 9\n')
    for flags in (['--model_params_override=train.max_steps=9', '--model_params_override=train.random_seed=7'],
                  ['--model_params_file_override=changes', '--model_params_file_override=changes']):
        out, _, code = outcome(tmp_path, '-m', 'lingpipe', 'inspect_params', '--model=tiny_digits', *flags)
        assert code == 0 and 'train.max_steps : 9\n' in out
        assert ('train.random_seed : 7\n' in out) == (len(set(flags)) == 2)


def test_another_backend_of_keras_is_refused(tmp_path):
    code, _, err = forked_programs.run(['-m', 'lingpipe', 'list'], tmp_path, KERAS_BACKEND='jax')
    assert code == 1 and err.startswith('Error: KERAS_BACKEND=jax is set, but LingPipe needs the backend tensor')


def test_help_needs_no_model_and_ends_well(tmp_path):
    for words in ([], ['--help'], ['plan', '--help']):
        out, err, code = outcome(tmp_path, '-m', 'lingpipe', *words)
        assert (err, code) == ('', 0)
        assert out.startswith(f'python -m lingpipe {"plan" if "plan" in words else "MODE"} --model=MODULE')


_LINES = {
    "{'a': 1}['units']": "KeyError: 'units'", 'assert False': 'AssertionError', '1 / 0': 'ZeroDivisionError: division by zero',
    'import none_such': "ModuleNotFoundError: No module named 'none_such'",
    'len(1)': "TypeError: object of type 'int' has no len()", "p.Set(unit=1)": 'unit is not a parameter', 'int("a")': "ValueError: invalid literal for int() with base 10: 'a'"}


@pytest.mark.parametrize('line', _LINES)
def test_an_error_of_a_users_file_has_its_line(tmp_path, monkeypatch, line):
    (tmp_path / 'my_model.py').write_text(f'def Task(p):\n    {line}\n')
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, 'my_model', raising=False)
    monkeypatch.setattr(command, '_INSTALLED', (*command._INSTALLED, str(pathlib.Path(__file__).parent)))
    import my_model
    p = hyperparams.Params()
    p.Define('units', 1, 'Number of units.')
    with pytest.raises(Exception) as caught:
        my_model.Task(p)
    assert command.error_in_words(caught.value).startswith(_LINES[line])
    assert command.place_of(caught.value) == f'{tmp_path}/my_model.py, line 2: {line}'


def test_a_line_without_its_file_is_not_the_users():
    assert command._is_users(__file__) and not command._is_users('numpy/random/_generator.pyx')


def test_an_error_of_lingpipe_has_no_place(monkeypatch):
    monkeypatch.setattr(command, '_INSTALLED', (str(pathlib.Path(__file__).parent),))
    with pytest.raises(AttributeError) as caught:
        hyperparams.Params().Set(unit=1)
    assert command.place_of(caught.value) == '' and not command.error_in_words(caught.value).startswith('Attr')


@pytest.mark.parametrize('words, message', [
    (['inspect_params', '--log_dir=x'], '--log_dir is not a flag of LingPipe. Did you mean --logdir?'),
    (['plan', '--device=cpu'], '--device=cpu is not for --mode=plan'),
    (['plan', '--num_devices=2'], "--num_devices=2 is for task.body.num_partitions='auto'"),
    (['train', '--logdir=x', '--step_timeout_seconds=inf'], 'flag --step_timeout_seconds=inf: inf is not a number')])
def test_flags_without_effect_or_sense_are_refused(tmp_path, words, message):
    _, printed, code = outcome(tmp_path, ROOT / 'run.py', *words, '--model=tiny_digits')
    assert code == 1 and f'Error: {message}' in printed


def test_a_mode_is_counted_among_flags_only():
    words = ['--prompt', 'mode', '--model=x']
    assert command._with_mode(['generate', *words]) == ['--mode=generate', *words]
