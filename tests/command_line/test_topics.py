"""The help of the command."""

import sys

import pytest
from absl import flags

from lingpipe.command_line import run_flags, topics


def test_every_flag_stands_in_one_topic():
    ours = [flag.name for flag in flags.FLAGS.flags_by_module_dict()[run_flags.__name__]]
    assert sorted(name for topic in topics.TOPICS for name in topic.names) == sorted(ours)


def test_modes_of_topics_are_modes():
    assert {mode for topic in topics.TOPICS for mode in topic.modes} <= set(run_flags.MODES)


def test_help_names_all_modes_and_flags():
    text = topics.text(['--help'])
    lines = text.splitlines()
    for mode in [*run_flags.MODES, 'new']:
        assert any(line.startswith(f'  {mode} ') for line in lines), mode
    for topic in topics.TOPICS:
        assert f'\n\n{topic.title}:\n' in text
        assert all(f'\n  --{name} ' in text + ' ' or f'\n  --{name}\n' in text for name in topic.names)
    assert max(map(len, lines)) <= 110


def test_help_of_a_mode_leaves_out_the_flags_of_others():
    text = topics.text(['plan', '--help'])
    assert '--accelerator' in text and '--prompt' not in text
    assert topics.text(['--mode=plan', '--help']) == text


@pytest.mark.parametrize(('path', 'name'), [
    ('/venv/bin/lingpipe', 'lingpipe'), ('run.py', 'python run.py'), ('/x/lingpipe/__main__.py', 'python -m lingpipe')])
def test_program_is_named_as_it_was_started(monkeypatch, path, name):
    monkeypatch.setattr(sys, 'argv', [path])
    assert topics.program() == name
