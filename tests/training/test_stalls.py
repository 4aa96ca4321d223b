"""Inputs that stop giving batches are named, and end the process; here they go on then, as if nothing had been."""

import threading

import pytest
import tensorflow as tf

from lingpipe.cluster import waits
from lingpipe.input import image_input
from lingpipe.training import evaluation, experiment, train_program


class Stall:
    """Blocks what calls it until the process would have ended.

    Attributes:
        sentences: what the process would have ended with.
    """

    def __init__(self):
        self.sentences, self._is_over = [], threading.Event()

    def block(self):
        assert self._is_over.wait(60)

    def end(self, sentence):
        self.sentences.append(sentence)
        self._is_over.set()

    def in_batches(self, batches):
        """Returns the same dataset, whose third batch blocks."""

        def generate():
            for number, batch in enumerate(batches):
                if number == 2:
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


def sentence(split):
    return (f"Waited 0.4 s for a batch of ImageInput(name='image_input', dataset='digits', split='{split}', data_dir=")


def test_a_training_input_that_blocks_is_named(
        tiny, stall, monkeypatch, tmp_path, caplog, finished, assert_same_checkpoint):
    stall_input(stall, monkeypatch, 'training_dataset')
    tiny.only_train(tmp_path, train__input_timeout_seconds=0.4)
    assert len(stall.sentences) == 1 and stall.sentences[0].startswith(sentence('train'))
    assert '(train.input_timeout_seconds=0.4).' in stall.sentences[0]
    assert 'Waiting for a batch of ImageInput(' in caplog.text
    assert_same_checkpoint(tmp_path / 'train/ckpt-12', finished.logdir / 'train/ckpt-12')


def test_an_input_that_cannot_be_opened_is_named(tiny, stall, monkeypatch, tmp_path):
    training_dataset = image_input.ImageInput.training_dataset
    monkeypatch.setattr(image_input.ImageInput, 'training_dataset',
                        lambda self, *args: stall.block() or training_dataset(self, *args))
    tiny.only_train(tmp_path, train__input_timeout_seconds=0.4)
    assert len(stall.sentences) == 1 and stall.sentences[0].startswith(sentence('train'))


def test_the_input_of_an_evaluation_that_blocks_is_named(tiny, stall, monkeypatch, tmp_path, finished):
    stall_input(stall, monkeypatch, 'evaluation_dataset')
    assert tiny.train(tmp_path, train__input_timeout_seconds=0.4).results == finished.results
    assert len(stall.sentences) == 1 and stall.sentences[0].startswith(sentence('test'))


def test_the_input_of_a_checkpoints_evaluation_that_blocks_is_named(tiny, stall, monkeypatch, copied, finished):
    stall_input(stall, monkeypatch, 'evaluation_dataset')
    params = tiny.params(train__input_timeout_seconds=0.4)
    results = evaluation.CheckpointEvaluation(params, tiny.evaluation_inputs(), copied).once()
    assert results == finished.results
    assert len(stall.sentences) == 1 and stall.sentences[0].startswith(sentence('test'))


def test_steps_that_take_long_are_no_fault_of_the_input(tiny, stall, tmp_path, monkeypatch):
    step = train_program.TrainProgram._step

    def slow_step(self, batch):
        with tf.control_dependencies([tf.numpy_function(lambda: threading.Event().wait(1), [], tf.bool)]):
            return step(self, tf.nest.map_structure(tf.identity, batch))

    monkeypatch.setattr(train_program.TrainProgram, '_step', slow_step)
    tiny.only_train(tmp_path, train__input_timeout_seconds=0.5, train__max_steps=2)
    assert not stall.sentences


def test_batches_of_a_program_are_waited_for_without_a_graph(tiny, stall):
    """As the chief of parameter servers does."""
    params = tiny.params(train__input_timeout_seconds=0.4)
    data = experiment.build_input(params.input)
    program = train_program.TrainProgram(experiment.build_task(params, data.input_spec), params.train)
    iterator = iter(stall.in_batches(data.training_dataset()))
    with program.watching_input(data):
        for _ in range(3):
            program._next_batch(iterator)
    assert len(stall.sentences) == 1
