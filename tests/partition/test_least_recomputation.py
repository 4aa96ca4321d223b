import itertools
import types

import numpy as np
import pytest
import scipy.optimize

from lingpipe.partition.least_recomputation import Choice


def drawn(seed):
    """Returns operations that make one or two tensors each and read what those before have made."""
    random = np.random.default_rng(seed)
    num_operations = int(random.integers(2, 8))
    makers = [index for index in range(num_operations) for _ in range(random.integers(1, 3))]
    reads = [(operation, tensor) for operation in range(num_operations) for tensor, maker in enumerate(makers)
             if maker < operation and random.random() < 0.4]
    wanted = [tensor for tensor in range(len(makers)) if random.random() < 0.6] or [0]
    unrepeatable = [index for index in range(num_operations) if random.random() < 0.15]
    return Choice(random.integers(1, 20, num_operations).tolist(), random.integers(1, 20, len(makers)).tolist(), makers,
                  reads, wanted, unrepeatable)


def possible(choice):
    """Yields the cost and the bytes of everything that can be done, by the definition of recomputation."""
    operations = range(len(choice.costs))
    for repeated in itertools.product([False, True], repeat=len(operations)):
        if not any(repeated[operation] for operation in choice.unrepeatable):
            needed = {*choice.wanted, *(tensor for operation, tensor in choice.reads if repeated[operation])}
            kept = [tensor for tensor in needed if not repeated[choice.makers[tensor]]]
            yield of(choice.costs, repeated), sum(choice.sizes[tensor] for tensor in kept)


def of(costs, repeated):
    return sum(cost for cost, is_repeated in zip(costs, repeated) if is_repeated)


def bytes_kept(choice, repeated):
    return sum(choice.sizes[tensor] for tensors in choice.kept(repeated) for tensor in tensors)


@pytest.mark.parametrize('seed', range(30))
def test_no_choice_keeps_less_in_the_same_time(seed):
    choice, most = drawn(seed), seed
    repeated = choice.least_bytes(most)
    assert of(choice.costs, repeated) <= most
    assert bytes_kept(choice, repeated) == min(size for cost, size in possible(choice) if cost <= most)


@pytest.mark.parametrize('seed', range(30))
def test_no_choice_that_fits_takes_less_time(seed):
    choice, most = drawn(seed), 2 * seed
    fitting = [cost for cost, size in possible(choice) if size <= most]
    repeated = choice.least_cost(most)
    if fitting:
        assert bytes_kept(choice, repeated) <= most
        assert of(choice.costs, repeated) == min(fitting)
    else:
        assert bytes_kept(choice, repeated) == min(size for _, size in possible(choice))


def test_nothing_is_repeated_where_no_choice_is_found_in_time(monkeypatch):
    monkeypatch.setattr(scipy.optimize, 'milp', lambda *unused, **options: types.SimpleNamespace(x=None))
    assert not drawn(0).least_bytes(0.0).any() and not drawn(0).least_cost(0.0).any()


def test_what_a_repeated_operation_reads_is_kept_or_repeated():
    """0 ─> tensor 0 ─> 1 ─> tensor 1 ─> 2 ─> tensor 2, which is wanted and large."""
    choice = Choice([100, 1, 1], [5, 50, 500], [0, 1, 2], [(1, 0), (2, 1)], [2], [])
    repeated = choice.least_bytes(10)
    assert repeated.tolist() == [False, True, True]
    assert choice.kept(repeated) == ({0}, set())


def test_where_nothing_may_be_repeated_all_that_is_wanted_is_kept():
    choice = drawn(3)
    repeated = choice.least_bytes(0)
    assert not any(repeated)
    assert choice.kept(repeated) == (set(), set(choice.wanted))
