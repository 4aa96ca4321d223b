"""A Slurm on this machine, which each test run starts."""

import pytest

from tests.slurm import slurm_on_one_machine
from tests.tiny_runs import assert_same_checkpoint, stored, tiny  # noqa: F401  fixtures


@pytest.fixture(scope='session')
def slurm(tmp_path_factory):
    """A `Slurm` that runs until the tests have ended."""
    if missing := slurm_on_one_machine.missing():
        pytest.skip(f'Slurm needs {missing} of Debian\'s slurm-wlm and munge')
    with slurm_on_one_machine.running(tmp_path_factory.mktemp('slurm')) as found:
        yield found
