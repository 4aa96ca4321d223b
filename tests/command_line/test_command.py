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


def test_help_needs_no_model_and_ends_well(tmp_path):
    for words in ([], ['--help'], ['plan', '--help']):
        out, err, code = outcome(tmp_path, '-m', 'lingpipe', *words)
        assert (err, code) == ('', 0)
        assert out.startswith(f'python -m lingpipe {"plan" if "plan" in words else "MODE"} --model=MODULE')
