"""The help of the command."""

import pytest
from absl import flags

from lingpipe.command_line import run_flags, topics


def test_every_flag_stands_in_one_topic():
    ours = [flag.name for flag in flags.FLAGS.flags_by_module_dict()[run_flags.__name__]]
    assert sorted(name for topic in topics.TOPICS for name in topic.names) == sorted(ours)


def test_help_names_all_modes_and_flags():
    text = topics.text(['--help'])
    lines = text.splitlines()
    for mode in [*topics.MODES, *topics.TOOLS]:
        assert any(line.startswith(f'  {mode} ') for line in lines), mode
    for topic in topics.TOPICS:
        assert f'\n\n{topic.title}' in text
        assert all(f'\n  --{name} ' in text + ' ' or f'\n  --{name}\n' in text for name in topic.names)
    assert max(map(len, lines)) <= 110


@pytest.mark.parametrize('words, is_asked', [
    (['help'], True), (['plan', 'help'], True), (['generate', '--prompt', 'help'], False), (['--prompt', 'help'], False)])
def test_help_is_a_word_of_its_own(words, is_asked):
    assert topics.is_asked_for(words) == is_asked


def test_help_of_a_mode_leaves_out_the_flags_of_others():
    text = topics.text(['plan', '--help'])
    assert '--accelerator' in text and '--prompt' not in text
    assert topics.text(['--mode=plan', '--help']) == text
