"""Faults are injected into the machine of a benchmark, never into that of the tests."""

import errno
import os

import pytest


@pytest.fixture
def broken_machine(load_benchmark, monkeypatch):
    module = load_benchmark('faults.broken_machine')
    monkeypatch.setattr(module, '_run', lambda *words: pytest.fail(f'would have run {words}'))
    return module


def test_the_network_of_this_process_is_not_cut(broken_machine):
    with pytest.raises(ValueError, match='has no network of its own: its cut would be that of the whole machine'):
        broken_machine.cut_network(os.getpid(), 0)


def test_a_full_disk_has_no_byte_left_until_it_is_freed(broken_machine, monkeypatch, tmp_path):
    left = [5 * 2**20 + 3]

    class File:
        def __enter__(self):
            return self

        def __exit__(self, *unused):
            pass

        def write(self, content):
            if len(content) > left[0]:
                raise OSError(errno.ENOSPC, 'No space left on device')
            left[0] -= len(content)

    monkeypatch.setattr(broken_machine, 'open', lambda *unused, **settings: File(), raising=False)
    disk = broken_machine.Disk(tmp_path)
    disk.fill()
    assert left == [0]
    (tmp_path / 'filler').write_bytes(b'x')
    disk.free()
    assert not list(tmp_path.iterdir())
