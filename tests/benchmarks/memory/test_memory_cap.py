"""The search for the deepest model that trains, and one trial of it at the smallest size."""

import types

import pytest

from lingpipe.partition import exact_cut
from tests import needs

_TINY = [
    '--model=decoder', '--num_blocks=2', '--width=8', '--sequence_length=4', '--batch_size=2', '--num_micro_batches=2']


@pytest.mark.parametrize('deepest', [0, 1, 5, 6, 7, 23])
@pytest.mark.parametrize('guess', [1, 6, 40])
def test_the_search_finds_the_last_that_lives_wherever_it_begins(load_benchmark, deepest, guess):
    asked = []

    def dies(number):
        asked.append(number)
        return number > deepest

    assert load_benchmark('memory.memory_cap').largest(dies, guess) == deepest
    assert min(asked) >= 1


@pytest.fixture
def recorded(load_benchmark, monkeypatch):
    """Returns the module, whose processes are only written down; those with more than four layers die."""
    memory_cap = load_benchmark('memory.memory_cap', '--cap_mib=100', *_TINY)
    jobs = []

    def run(*job):
        jobs.append(job)
        configuration, _, ends, _, index = job
        if ends[index] - ([0, *ends])[index] > 4:
            raise memory_cap.common.ProcessDied('SIGABRT: std::bad_alloc')
        return {'parameters': 10}

    monkeypatch.setattr(memory_cap, '_run_process', run)
    monkeypatch.setattr(memory_cap, 'planned', _evenly_cut)
    return memory_cap, jobs


def _evenly_cut(num_blocks, configuration):
    ends = exact_cut.balanced_partition_ends([1] * (num_blocks + 2), configuration.num_partitions)
    return types.SimpleNamespace(ends=ends)


def test_equal_partitions_run_once(recorded):
    memory_cap, jobs = recorded
    trials = memory_cap.Trials('stage', (20.0, 3.0))
    assert trials.results(4, 14) == [{'parameters': 10}] * 4
    assert [job[3] for job in jobs] == [100 + 20 + 3 * blocks for blocks in (3, 4, 3)]
    assert trials.results(4, 14) and len(jobs) == 3


def test_a_model_dies_with_its_first_partition_that_does(recorded):
    memory_cap, _ = recorded
    trials = memory_cap.Trials('stage', (20.0, 3.0))
    assert trials.dies(1, 3) == 'SIGABRT: std::bad_alloc'
    assert memory_cap.measure(trials, 2, 1) == (6, 20, 'SIGABRT: std::bad_alloc')


def test_a_cap_that_is_too_little_for_one_block_is_named(recorded, monkeypatch):
    memory_cap, _ = recorded

    def die(*unused_job):
        raise memory_cap.common.ProcessDied('SIGKILL')

    monkeypatch.setattr(memory_cap, '_run_process', die)
    with pytest.raises(ValueError, match='--cap_mib=100 is too little for one block'):
        memory_cap.measure(memory_cap.Trials('none', (0.0, 0.0)), 0, 3)


@needs.tensorflow('2.20', 'a step hangs after an allocation that failed')
def test_a_process_trains_below_its_limit_and_dies_above(load_forking):
    memory_cap = load_forking('memory.memory_cap', *_TINY)
    plain = memory_cap.Configuration(0, 'none')
    found = memory_cap._run_process(plain, 1, [3], 4000, 0)
    assert found['parameters'] == 256 * 8 + 12 * 8**2 + 13 * 8 + 8 * 256 + 256
    assert len(found['losses']) == 2
    with pytest.raises(memory_cap.common.ProcessDied):
        memory_cap._run_process(plain, 1, [3], 1, 0)
