"""Who writes and reads the files of a checkpoint."""

import pytest

from lingpipe.training import background_writer, shared_folder

HOSTS = 'CPU:0', 'CPU:1'


@pytest.fixture(autouse=True)
def _devices_are_hosts(monkeypatch):
    monkeypatch.setattr(background_writer, 'host_of', lambda device: device)


def test_each_machine_writes_its_share_where_all_see_the_folder(tmp_path):
    assert shared_folder.checkpoint_options(tmp_path, HOSTS).experimental_io_device is None
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('found', [None, b'of another folder of this name'])
def test_one_machine_writes_all_where_another_does_not_see_it(tmp_path, monkeypatch, found):
    read = shared_folder._read_on
    monkeypatch.setattr(shared_folder, '_read_on', lambda host, path: found if host == 'CPU:1' else read(host, path))
    assert shared_folder.checkpoint_options(tmp_path, HOSTS).experimental_io_device == 'CPU:0'
    assert not list(tmp_path.iterdir())


def test_a_missing_file_is_not_seen(tmp_path):
    assert shared_folder._read_on('CPU:0', str(tmp_path / 'nothing')) is None


def test_one_machine_needs_no_question(tmp_path):
    assert shared_folder.checkpoint_options(tmp_path / 'nothing', ['CPU:0']).experimental_io_device == 'CPU:0'
