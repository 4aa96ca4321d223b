"""Files of compiled programs, of which hostile ones are compiled again."""

import gzip
import json
import os

import pytest

from lingpipe.tools.tpu_compile import compiled_files, hlo_text, tpu_compiler
from tests.tools.test_tpu_compiler_hlo import TEXT

_ANSWER = {'arguments': 1, 'outputs': 2, 'aliased': 0, 'temporaries': 3, 'generated_code': 4, 'flops': 5.0,
           'seconds': 0.5, 'hlo': TEXT}
_REFUSAL = {'error': 'It needs (17.9G) exceeds available HBM (15.7G).'}


def read(path, content=None):
    if content is not None:
        path.write_bytes(content)
    return compiled_files.read(path, tpu_compiler._check)


def packed(**fields):
    return gzip.compress(json.dumps(_ANSWER | fields).encode())


@pytest.mark.parametrize('answer', [_ANSWER, _REFUSAL])
def test_an_answer_reads_back(answer, tmp_path):
    compiled_files.write(tmp_path / 'compiled/a.json.gz', answer)
    assert read(tmp_path / 'compiled/a.json.gz') == answer
    assert read(tmp_path / 'compiled/b.json.gz') is None


_DAMAGED = [
    b'', b'no gzip', packed()[:-9], gzip.compress(b'[' * 100_000), gzip.compress(b'[]'), gzip.compress(b'{}'),
    gzip.compress(b'\xff'), gzip.compress(b'{"error": "(1.2.3G) exceeds available HBM (9G)"}'),
    gzip.compress(b'{"error": "Open this page."}'), gzip.compress(b'{"error": 1}'), packed(stranger=1),
    packed(arguments='1'), packed(arguments=-1), packed(outputs=10**30), packed(flops=float('nan')), packed(flops=[]),
    packed(hlo=3), packed(hlo=''), packed(hlo=TEXT.replace('60', '9' * 100)), packed(hlo=TEXT.replace('8,', '0,'))]


@pytest.mark.parametrize('content', _DAMAGED, ids=range(len(_DAMAGED)))
def test_a_damaged_file_counts_as_a_missing_one(content, tmp_path, caplog):
    assert read(tmp_path / 'a.json.gz', content) is None
    assert 'a.json.gz is damaged (' in caplog.text and 'the program is compiled again.' in caplog.text
    assert len(caplog.text) < 1000


@pytest.mark.parametrize('make', [os.mkfifo, os.mkdir, lambda path: os.symlink('/dev/zero', path)])
def test_what_is_no_file_counts_as_a_missing_one(make, tmp_path):
    make(tmp_path / 'a.json.gz')
    assert read(tmp_path / 'a.json.gz') is None


def test_a_file_that_unpacks_without_end_is_not_unpacked(tmp_path, caplog):
    chunk = gzip.compress(b'{"error": "' + b'a' * 2**26 + b'"}', 1)
    assert read(tmp_path / 'a.json.gz', chunk) is None
    assert 'it has more than 67,108,864 bytes' in caplog.text


def test_a_program_that_is_too_large_to_read_is_not_kept(tmp_path):
    compiled_files.write(tmp_path / 'a.json.gz', _ANSWER | {'hlo': TEXT + ' ' * 2**26})
    assert not list(tmp_path.iterdir())


def test_a_file_that_cannot_be_written_is_told(tmp_path, caplog):
    (tmp_path / 'a.json.gz').mkdir()
    compiled_files.write(tmp_path / 'a.json.gz', _ANSWER)
    assert 'a.json.gz could not be written (Is a directory)' in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == ['a.json.gz']


@pytest.mark.parametrize('text, num_sizes', [
    ('= (' * 300_000, None), ('HloModule entry_computation_layout={(' + ')->{' * 300_000, None),
    ('entry_computation_layout={(' * 40_000, None), ('a' * 300_000 + '\n' + '= (a) ' * 100_000, None),
    ('entry_computation_layout={(' + 'a' * 300_000 + ')->}', 0),
    ('entry_computation_layout={(' + 'f32[1]{0:' * 100_000 + ')->}', 100_000)], ids=range(6))
def test_the_search_of_a_hostile_program_ends(text, num_sizes):
    """A search whose time grew with the square of the length would take hours."""
    assert not any(hlo_text.collectives(text).values())
    assert hlo_text.num_products(text) == 0
    if num_sizes is None:
        with pytest.raises(ValueError, match='does not say the layout of its arguments'):
            hlo_text.entry_sizes(text)
    else:
        assert list(map(len, hlo_text.entry_sizes(text))) == [num_sizes, 0]
