"""Growth of memory and open files, from samples whose figures are known, and of a process that is here."""

import os
import time

import pytest


@pytest.fixture
def training():
    """A training run of one task, whose supervisor and child are this process."""
    class Training:
        tasks = ('chief',)

        def supervisor(self, task):
            return os.getpid()

        child = supervisor

    return Training()


@pytest.fixture
def process_use(load_benchmark):
    return load_benchmark('faults.process_use')


def wait_for_a_sample(use):
    deadline = time.monotonic() + 30
    while not use.samples and time.monotonic() < deadline:
        time.sleep(.01)


def test_growth_compares_the_last_samples_with_early_ones(process_use, training):
    use = process_use.ProcessUse(training, 1)
    use.samples = [{'chief': (9, 1)}] * 4 + [{'chief': (100, 10)}] * 4 + [{}] * 3 + [{'chief': (110, 10)}] * 4
    assert use.growth(4, 4) == pytest.approx([.1, 0])


def test_samples_count_memory_and_files_of_both_processes(process_use, training):
    with process_use.ProcessUse(training, .01) as use:
        wait_for_a_sample(use)
    num_bytes, num_files = use.samples[0]['chief']
    assert num_bytes > 2**20
    assert num_files >= 2 * 3  # at least the standard streams, of each


def test_a_task_without_process_is_no_sample(process_use, training):
    training.child = lambda task: None
    with process_use.ProcessUse(training, .01) as use:
        wait_for_a_sample(use)
    assert use.samples[0] == {}
