import gc

import pytest

from lingpipe.training import garbage


@pytest.fixture(autouse=True)
def thresholds():
    before = gc.get_threshold()
    yield before
    gc.set_threshold(*before)


def test_the_collector_looks_rarely_and_then_as_before():
    gc.set_threshold(700, 10, 10)
    with pytest.raises(KeyError), garbage.rarely_collected():
        assert gc.get_threshold() == (100_000, 10, 10)
        raise KeyError
    assert gc.get_threshold() == (700, 10, 10)


@pytest.mark.parametrize('chosen', [0, 1_000_000])
def test_what_the_user_has_chosen_is_no_less(chosen):
    gc.set_threshold(chosen, 10, 10)
    with garbage.rarely_collected():
        assert gc.get_threshold() == (chosen, 10, 10)
