"""Training runs of a tiny model, disks that are full, and the contents of folders."""

import contextlib
import os
import pathlib
import resource

import pytest

from lingpipe.training import progress
from tests.cluster.conftest import told  # noqa: F401  fixture
from tests.tiny_runs import assert_same_checkpoint, copied, finished, images_are_loaded_once, stored, tiny  # noqa: F401  fixtures


@pytest.fixture
def full_disk():
    """Context manager within which no file grows beyond 1 KiB."""

    @contextlib.contextmanager
    def limit():
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return limit


@pytest.fixture
def contents():
    """Function that returns {path: bytes} of all files below a folder."""

    def read(folder):
        return {path: path.read_bytes() for path in pathlib.Path(folder).rglob('*') if path.is_file()}

    return read


@pytest.fixture
def signal_at(monkeypatch):
    """Function that lets a signal arrive when training has reached a step."""
    update = progress.Progress.update

    def arrange(step, number):
        def signalling_update(self, current_step, *args):
            update(self, current_step, *args)
            if current_step == step:
                os.kill(os.getpid(), number)

        monkeypatch.setattr(progress.Progress, 'update', signalling_update)

    return arrange
