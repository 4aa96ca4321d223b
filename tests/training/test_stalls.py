"""Inputs and files that hang are named, and end the process; here they go on then, as if nothing had been."""

import functools
import os
import signal
import threading
import time

import pytest
import tensorflow as tf

from lingpipe.cluster import waits
from lingpipe.input import image_input
from lingpipe.training import experiment, interruption, train_program


class Stall:
    """Blocks what calls it until the process would have ended.

    Attributes:
        expected: beginning of the sentence that the process would end with. On a busy machine other waits may take too
            long as well.
    """

    def __init__(self):
        self.expected, self._sentences, self._condition = None, [], threading.Condition()

    def block(self, expected=None):
        with self._condition:
            assert self._condition.wait_for(lambda: self.sentence(expected), 60)

    def end(self, sentence):
        with self._condition:
            self._sentences.append(sentence)
            self._condition.notify_all()

    def sentence(self, expected=None):
        """Return the sentence with the expected beginning, or None."""
        return next((text for text in self._sentences if text.startswith(expected or self.expected)), None)

    def in_batches(self, batches):
        """Return the same dataset, whose third batch blocks."""

        def generate():
            for number, batch in enumerate(batches):
                if number == 2:
                    self._sentences.clear()  # to open the input may have taken too long as well
                    self.block()
                yield batch

        return tf.data.Dataset.from_generator(generate, output_signature=batches.element_spec)


@pytest.fixture
def stall(monkeypatch):
    made = Stall()
    monkeypatch.setattr(waits, 'end_process', made.end)
    return made


def stall_input(stall, monkeypatch, method):
    make = getattr(image_input.ImageInput, method)
    monkeypatch.setattr(image_input.ImageInput, method, lambda self, *args: stall.in_batches(make(self, *args)))


def sentence(split, seconds=1):
    return (f"Waited {seconds} s for a batch of ImageInput(name='image_input', dataset='digits', split='{split}')")


def test_a_training_input_that_blocks_is_named(
        tiny, stall, monkeypatch, tmp_path, caplog, finished, assert_same_checkpoint):
    stall.expected = sentence('train', seconds=3)  # on a busy machine the first batch may take more than one
    stall_input(stall, monkeypatch, 'training_dataset')
    tiny.only_train(tmp_path, train__input_timeout_seconds=3.0)
    assert '(train.input_timeout_seconds=3). ' in stall.sentence()
    assert stall.sentence().endswith(f' The steps before were saved: checkpoint {tmp_path}/train/ckpt-2.')
    assert 'Still waiting for a batch of ImageInput(' in caplog.text
    assert_same_checkpoint(tmp_path / 'train/ckpt-12', finished.logdir / 'train/ckpt-12')


@pytest.mark.parametrize('method, step', [('training_dataset', 2), ('evaluation_dataset', 4)])
def test_a_signal_while_an_input_blocks_saves_the_steps_before(
        tiny, stall, monkeypatch, tmp_path, capsys, finished, assert_same_checkpoint, method, step):
    stall.expected = 'ended'
    stall_input(stall, monkeypatch, method)
    monkeypatch.setattr(interruption.Interruption, 'end_process', lambda self: stall.end('ended'))
    monkeypatch.setattr(waits, '_URGENT_SECONDS', .2)
    monkeypatch.setattr(stall, 'block', functools.partial(_kill_and_block, stall.block))
    assert tiny.train(tmp_path, eval__interval_steps=4).results == {}
    assert f'Stopped by SIGTERM at step {step}; checkpoint {tmp_path}/train/ckpt-{step}. Run the ' in capsys.readouterr().out
    monkeypatch.undo()
    tiny.only_train(tmp_path)
    assert_same_checkpoint(tmp_path / 'train/ckpt-12', finished.logdir / 'train/ckpt-12')


def _kill_and_block(block):
    os.kill(os.getpid(), signal.SIGTERM)
    block()


def test_an_input_that_cannot_be_opened_is_named(tiny, stall, monkeypatch, tmp_path):
    stall.expected = sentence('train')
    training_dataset = image_input.ImageInput.training_dataset
    monkeypatch.setattr(image_input.ImageInput, 'training_dataset',
                        lambda self, *args: stall.block() or training_dataset(self, *args))
    tiny.only_train(tmp_path, train__input_timeout_seconds=1.0)
    assert stall.sentence()


def test_the_input_of_an_evaluation_that_blocks_is_named(tiny, stall, monkeypatch, tmp_path, finished):
    stall.expected = sentence('test', 4)  # a busy machine needs more than a second to open it, in the same wait
    stall_input(stall, monkeypatch, 'evaluation_dataset')
    assert tiny.train(tmp_path, train__input_timeout_seconds=4.0).results == finished.results
    assert stall.sentence()


def test_nobody_waits_for_the_input_while_a_step_takes_long(tiny, tmp_path, monkeypatch):
    step = train_program.TrainProgram._step
    positions = []

    def look(self):
        time.sleep(0.1)  # the batch is there before it counts as given
        positions.append((self.batch_waits.limited(), self.position()))
        return False

    def slow_step(self, batch):
        with tf.control_dependencies(batch):
            looked = tf.numpy_function(lambda: look(self), [], tf.bool)
        with tf.control_dependencies([looked]):
            return step(self, tf.nest.map_structure(tf.identity, batch))

    monkeypatch.setattr(train_program.TrainProgram, '_step', slow_step)
    tiny.only_train(tmp_path, train__max_steps=3)
    assert positions == [(None, 2), (None, 4), (None, 6)]


def test_a_resumed_run_may_take_longer_to_seek_its_position(tiny, stall):
    """It reads again all that it has seen; the batches after the first one are limited as always."""
    stall.expected = "Waited 0.3 s for a batch of ImageInput("
    params = tiny.params(train__input_timeout_seconds=0.3)
    data = experiment.build_input(params.input)
    program = train_program.TrainProgram(experiment.build_task(params, data.input_spec), params.train)

    def generate():
        time.sleep(1)
        yield 1
        assert not stall.sentence()
        stall.block()
        yield 2

    program._num_seen(data, 3)
    iterator = iter(tf.data.Dataset.from_generator(generate, output_signature=tf.TensorSpec([], tf.int32)))
    with program.watching_input(data):
        assert [int(program.batch_waits.next_batch(iterator)) for _ in range(2)] == [1, 2]
    assert stall.sentence()


def test_batches_of_a_program_are_waited_for_without_a_graph(tiny, stall):
    """As the chief of parameter servers does."""
    stall.expected = sentence('train', seconds=3)  # on a busy machine the first batch may take more than one
    params = tiny.params(train__input_timeout_seconds=3.0)
    data = experiment.build_input(params.input)
    program = train_program.TrainProgram(experiment.build_task(params, data.input_spec), params.train)
    iterator = iter(stall.in_batches(data.training_dataset()))
    with program.watching_input(data):
        for _ in range(3):
            program.batch_waits.next_batch(iterator)
    assert stall.sentence()


def test_a_checkpoint_that_is_not_written_is_named(
        tiny, stall, monkeypatch, tmp_path, caplog, finished, assert_same_checkpoint):
    stall.expected = f'Waited 1 s for checkpoint {tmp_path}/train/ckpt-12 to be written (train.check'
    save = tf.train.Checkpoint.write
    monkeypatch.setattr(tf.train.Checkpoint, 'write', lambda *args, **kwargs: stall.block() or save(*args, **kwargs))
    tiny.only_train(tmp_path, train__checkpoint_timeout_seconds=1.0)
    assert stall.sentence()
    assert f'Still waiting for checkpoint {tmp_path}/train/ckpt-12 to be written after' in caplog.text
    assert_same_checkpoint(tmp_path / 'train/ckpt-12', finished.logdir / 'train/ckpt-12')


def test_a_checkpoint_that_training_cannot_read_is_named(tiny, stall, monkeypatch, copied):
    stall.expected = f'Waited 1 s for checkpoint {copied}/train/ckpt-12 to be read (train.checkpoint_tim'
    read = tf.train.Checkpoint.read
    monkeypatch.setattr(tf.train.Checkpoint, 'read', lambda *args, **kwargs: stall.block() or read(*args, **kwargs))
    tiny.only_train(copied, train__checkpoint_timeout_seconds=1.0)
    assert stall.sentence()


WORK = [
    (train_program.TrainProgram, 'state_restored', 'weights to reach all devices'),
    (train_program.TrainProgram, 'before_save', 'the newest weights')]


def test_a_copy_between_devices_that_hangs_is_named(tiny, stall, monkeypatch, tmp_path):
    for owner, name, what in WORK:
        work, expected = getattr(owner, name), f'Waited 1 s for {what} ('
        monkeypatch.setattr(owner, name, lambda *args, work=work, expected=expected: stall.block(expected) or work(*args))
    tiny.train(tmp_path, train__checkpoint_timeout_seconds=1.0, train__max_steps=2)
    assert all(stall.sentence(f'Waited 1 s for {what} (') for _, _, what in WORK)
