"""What a process costs, measured at the process of the test."""

import os
import time
import types

import pytest


def test_processor_seconds_are_those_of_the_process(load_benchmark):
    load = load_benchmark('faults.load')
    before = time.process_time()
    assert before - .1 <= load._processor_seconds(os.getpid()) <= time.process_time() + .1


def test_memory_is_that_of_a_process_and_its_supervisor(load_benchmark):
    load = load_benchmark('faults.load')
    both = types.SimpleNamespace(supervisor=lambda task: os.getpid(), child=lambda task: os.getpid())
    before = load._memory(both, 'worker 0')
    held = b'x' * (64 * 2**20)
    assert load._memory(both, 'worker 0') - before == pytest.approx(2 * len(held), rel=.1)
