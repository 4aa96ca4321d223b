import os

import pytest

from lingpipe import text_files


def test_the_text_of_a_file_comes_back(tmp_path):
    (tmp_path / 'a').write_text('née\r\n', encoding='utf-8', newline='')
    assert text_files.read(tmp_path / 'a', 6) == 'née\r\n'


def test_home_and_a_byte_order_mark_are_understood(tmp_path, monkeypatch):
    monkeypatch.setenv('HOME', str(tmp_path))
    (tmp_path / 'a').write_text('née', encoding='utf-8-sig')
    assert text_files.read('~/a', 10) == 'née'


def test_what_has_no_end_is_not_read(tmp_path):
    os.mkfifo(tmp_path / 'pipe')
    for path in (tmp_path / 'pipe', tmp_path, '/dev/zero'):
        with pytest.raises(ValueError, match='a folder, a pipe or a device, not a file'):
            text_files.read(path, 10)


def test_what_cannot_be_read_says_why(tmp_path):
    (tmp_path / 'long').write_bytes(b'a' * 11)
    (tmp_path / 'latin').write_bytes('née'.encode('latin-1'))
    for name, reason in (('long', 'more than 10 bytes'), ('latin', 'not text in UTF-8, from byte 1 on'),
                         ('nowhere', 'No such file or directory')):
        with pytest.raises(ValueError, match=reason):
            text_files.read(tmp_path / name, 10)


def test_json_without_end_is_refused():
    for text in ('[' * 100_000, '{"a":' * 100_000):
        with pytest.raises(ValueError, match='nested too deeply'):
            text_files.parsed_json(text)
    with pytest.raises(ValueError, match='4300 digits'):
        text_files.parsed_json('9' * 5000)
