"""A sign of life every 5 seconds: for systemd's WatchdogSec, and a file for a livenessProbe of Kubernetes.

It shows that the process runs, and is not stopped or blocked. Steps, inputs and checkpoints have limits of their own.
"""

import contextlib
import os
import pathlib
import socket
import threading
import time

_SECONDS = 5


def start(path: str | None) -> None:
    """Starts a thread that touches a file, and notifies systemd where it listens (NOTIFY_SOCKET of sd_notify(3)).

    Args:
        path: the file, or None.

    Raises:
        OSError: the file cannot be written.
    """
    address = os.environ.get('NOTIFY_SOCKET')
    file = pathlib.Path(path).expanduser() if path else None
    if file:
        file.touch()
    if file or address:
        threading.Thread(target=_run, args=(file, address), name='liveness', daemon=True).start()


def _run(file: pathlib.Path | None, address: str | None) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        while True:
            with contextlib.suppress(OSError):  # a full disk, or systemd that starts again
                if file:
                    file.touch()
                if address:
                    systemd.sendto(b'READY=1\nWATCHDOG=1', address.replace('@', '\0', 1))
            time.sleep(_SECONDS)
