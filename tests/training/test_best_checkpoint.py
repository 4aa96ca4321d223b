"""The record of the best checkpoint, beside folders of checkpoints that are there in name."""

import pytest

from lingpipe.training import best_checkpoint


@pytest.fixture
def best(tmp_path, monkeypatch):
    monkeypatch.setattr(best_checkpoint.checkpoints, 'complete', lambda folder: [f'{folder}/ckpt-7'])

    def make(metric='accuracy', input_text='split : test\n', is_larger_better=True, resumes=True):
        made = best_checkpoint.BestCheckpoint(str(tmp_path), metric, input_text)
        made.read(is_larger_better, resumes)
        return made

    return make


def test_a_record_reads_back_and_only_better_values_replace_it(best):
    first = best()
    first.write(first.improved(7, {'accuracy': 0.9876543210987654}))
    assert best().improved(8, {'accuracy': 0.9876543210987654}) is None
    assert best().improved(8, {'accuracy': float('nan')}) is None and best().improved(8, {}) is None
    assert best().improved(8, {'accuracy': 0.9876543210987655}).step == 8
    assert best(metric=None).improved(8, {'accuracy': 1.0}) is None


def test_a_value_of_another_metric_is_replaced(best, caplog):
    first = best()
    first.write(first.improved(7, {'accuracy': 0.5}))
    assert best('loss').improved(8, {'loss': 3.0}).metric == 'loss'
    assert 'is the best by accuracy, and eval.best_metric is loss now' in caplog.text


def test_a_value_without_its_checkpoint_is_replaced(best, caplog):
    first = best()
    first.write(first.improved(4, {'accuracy': 0.5}))
    assert best().improved(8, {'accuracy': 0.25}).step == 8
    assert 'has no checkpoint of step 4, of which its best.json is' in caplog.text


def test_a_best_value_of_other_examples_is_warned_of(best, caplog):
    first = best(input_text='batch_size : 8\nsplit : test\n')
    first.write(first.improved(7, {'accuracy': 0.5}))
    assert best(input_text='batch_size : 16\nsplit : test\n').improved(8, {'accuracy': 0.25}) is None
    assert not caplog.text
    assert best(input_text='batch_size : 8\nsplit : test[:9]\n').improved(8, {'accuracy': 0.25}) is None
    assert 'is the best by other examples (split : test -> test[:9])' in caplog.text


def test_a_value_of_an_earlier_run_is_replaced(best, caplog):
    first = best()
    first.write(first.improved(7, {'accuracy': 0.5}))
    again = best(resumes=False)
    assert 'is of an earlier training run, and this one starts from its first step' in caplog.text
    assert again.improved(7, {'accuracy': 0.25}).value == 0.25
    assert best().improved(8, {'accuracy': 0.125}).value == 0.125  # the record is gone until its checkpoint is there
