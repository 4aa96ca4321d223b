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
def after_update(monkeypatch):
    """Function that has a function called with each step that training has reached."""
    update = progress.Progress.update

    def arrange(function):
        def calling_update(self, step, *args):
            update(self, step, *args)
            function(step)

        monkeypatch.setattr(progress.Progress, 'update', calling_update)

    return arrange


@pytest.fixture
def signal_at(after_update):
    """Function that lets a signal arrive when training has reached a step."""
    return lambda step, number: after_update(lambda current: current == step and os.kill(os.getpid(), number))
