"""A process that runs says so, to systemd and by a file."""

import os
import pathlib
import socket
import time

from lingpipe.command_line import liveness


def test_a_file_becomes_newer_and_systemd_hears_of_it(tmp_path, monkeypatch):
    monkeypatch.setattr(liveness, '_SECONDS', .05)
    file, address = tmp_path / 'alive', str(tmp_path / 'notify')
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(address)
        systemd.settimeout(30)
        monkeypatch.setenv('NOTIFY_SOCKET', address)
        liveness.start(str(file))
        assert systemd.recv(100) == b'READY=1\nWATCHDOG=1'
    os.utime(file, (0, 0))
    end = time.monotonic() + 30
    while pathlib.Path(file).stat().st_mtime == 0:
        assert time.monotonic() < end
        time.sleep(.01)
