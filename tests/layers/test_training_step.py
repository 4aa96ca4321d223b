import threading

import pytest

from lingpipe.layers import training_step


def test_the_innermost_step_counts_and_ends_with_its_block():
    assert training_step.current_training_step() is None
    with training_step.training_step(3):
        with training_step.training_step(5):
            assert training_step.current_training_step() == 5
        assert training_step.current_training_step() == 3
        with training_step.training_step(None):
            assert training_step.current_training_step() is None
    assert training_step.current_training_step() is None


def test_a_step_ends_with_an_error_too():
    with pytest.raises(RuntimeError), training_step.training_step(3):
        raise RuntimeError
    assert training_step.current_training_step() is None


def test_threads_do_not_see_the_steps_of_each_other():
    seen = []
    with training_step.training_step(3):
        thread = threading.Thread(target=lambda: seen.append(training_step.current_training_step()))
        thread.start()
        thread.join()
    assert seen == [None]
