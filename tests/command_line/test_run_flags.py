import copy

from absl import flags

from lingpipe.command_line import run_flags


def test_a_line_of_the_file_is_a_prompt(tmp_path):
    """Other characters that end lines for Python may be in a prompt."""
    (tmp_path / 'prompts').write_text('one\u2028more\ntwo\x0c\n', encoding='utf-8')
    given = copy.deepcopy(flags.FLAGS)
    given(['lingpipe', f'--prompt_file={tmp_path}/prompts'])
    assert run_flags.prompts(given) == ['one\u2028more', 'two\x0c']
