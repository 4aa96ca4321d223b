"""Modes as sub-commands, whichever way the command is started."""

import pathlib

from tests import forked_programs

ROOT = pathlib.Path(__file__).parents[2]


def outcome(folder, *words):
    programs = str(ROOT / 'tests/programs')
    program = forked_programs.ForkedProgram(words, {'PYTHONPATH': f'{ROOT}:{programs}'}, folder)
    return (*program.communicate(), program.returncode)


def test_a_sub_command_does_what_the_mode_does(tmp_path):
    by_flag = outcome(tmp_path, ROOT / 'run.py', '--model=tiny_digits', '--mode=inspect_params')
    assert by_flag[2] == 0 and 'train.max_steps : ' in by_flag[0]
    assert outcome(tmp_path, ROOT / 'run.py', 'inspect_params', '--model=tiny_digits') == by_flag
    assert outcome(tmp_path, '-m', 'lingpipe', 'inspect_params', '--model=tiny_digits') == by_flag


def test_changes_may_be_given_several_times(tmp_path):
    (tmp_path / 'changes').write_text('train.max_steps : 9\n')
    for flags in (['--model_params_override=train.max_steps=9', '--model_params_override=train.random_seed=7'],
                  ['--model_params_file_override=changes', '--model_params_file_override=changes']):
        out, _, code = outcome(tmp_path, '-m', 'lingpipe', 'inspect_params', '--model=tiny_digits', *flags)
        assert code == 0 and 'train.max_steps : 9\n' in out
        assert ('train.random_seed : 7\n' in out) == (len(set(flags)) == 2)


def test_another_backend_of_keras_is_refused(tmp_path):
    program = forked_programs.ForkedProgram(
        ['-m', 'lingpipe', 'list'], {'PYTHONPATH': str(ROOT), 'KERAS_BACKEND': 'jax'}, tmp_path)
    assert program.communicate()[1].startswith('Error: KERAS_BACKEND=jax is set, but LingPipe needs the backend tensor')
    assert program.returncode == 1


def test_help_needs_no_model_and_ends_well(tmp_path):
    for words in ([], ['--help'], ['plan', '--help']):
        out, err, code = outcome(tmp_path, '-m', 'lingpipe', *words)
        assert (err, code) == ('', 0)
        assert out.startswith(f'python -m lingpipe {"plan" if "plan" in words else "MODE"} --model=MODULE')
