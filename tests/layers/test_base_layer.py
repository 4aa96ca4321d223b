import threading

import pytest

from lingpipe.layers import base_layer


def test_the_innermost_step_counts_and_ends_with_its_block():
    assert base_layer.current_training_step() is None
    with base_layer.training_step(3):
        with base_layer.training_step(5):
            assert base_layer.current_training_step() == 5
        assert base_layer.current_training_step() == 3
        with base_layer.training_step(None):
            assert base_layer.current_training_step() is None
    assert base_layer.current_training_step() is None


def test_a_step_ends_with_an_error_too():
    with pytest.raises(RuntimeError), base_layer.training_step(3):
        raise RuntimeError
    assert base_layer.current_training_step() is None


def test_threads_do_not_see_the_steps_of_each_other():
    seen = []
    with base_layer.training_step(3):
        thread = threading.Thread(target=lambda: seen.append(base_layer.current_training_step()))
        thread.start()
        thread.join()
    assert seen == [None]
