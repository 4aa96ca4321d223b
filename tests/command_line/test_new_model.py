"""`lingpipe new my_model`, and that what it writes trains."""

import re

import pytest

from lingpipe.command_line import modes
from tests import forked_programs


def test_a_new_model_trains_as_it_was_written(tmp_path):
    code, out, err = forked_programs.run(['-m', 'lingpipe', 'new', 'my_model'], tmp_path)
    assert code == 0, err
    assert out.startswith('Wrote my_model.py. ')
    command = re.search('`(lingpipe .*)`', out)[1].split()
    code, out, err = forked_programs.run(['-m', *command], tmp_path)
    assert code == 0, err
    assert float(re.search(r'Final Test after 200 steps: .*accuracy ([\d.]+) %', out)[1]) > 80
    assert (tmp_path / 'logs/my_model').is_dir()


@pytest.mark.parametrize(('words', 'sentence'), [
    ([], '0 words were given'), (['a', 'b'], '2 words were given'), (['my-model'], "'my-model' is not a name of a Python"),
    (['class'], "'class' is not a name of a Python"), (['keras'], 'keras is the name of an installed Python module'),
    (['there'], 'there.py exists already'), (['keras.mine'], 'keras is the name of an installed Python module')])
def test_a_name_that_cannot_be_is_refused(tmp_path, monkeypatch, words, sentence):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'there.py').write_text('x = 1\n')
    with pytest.raises(ValueError, match=sentence):
        modes.main(words)
    assert sorted(path.name for path in tmp_path.iterdir()) == ['there.py']
