"""A Slurm on this machine, which each test run starts."""

import pytest

from tests.slurm import slurm_on_one_machine
from tests.tiny_runs import assert_same_checkpoint, stored, tiny  # noqa: F401  fixtures


@pytest.fixture(name='nodes', scope='session')
def nodes_fixture(tmp_path_factory):
    """A `Slurm` that runs until the tests have ended."""
    if missing := slurm_on_one_machine.missing():
        pytest.skip(f'Slurm needs {missing} of Debian\'s slurm-wlm and munge')
    with slurm_on_one_machine.running(tmp_path_factory.mktemp('slurm')) as found:
        yield found


@pytest.fixture
def slurm(nodes):
    """A `Slurm` without jobs: what a test has started ends with it, so that the next one does not wait for its nodes."""
    yield nodes
    nodes.cancel_all()
