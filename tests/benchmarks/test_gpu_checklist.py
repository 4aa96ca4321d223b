"""The checklist on virtual CPU devices: what it proves on GPUs it proves there."""

import re

import pytest

TINY = ['--num_blocks=1', '--width=8', '--sequence_length=4', '--batch_size=8', '--num_micro_batches=2', '--num_steps=1']


@pytest.mark.parametrize('check', ['equality', 'group_statistics', 'half_precision'])
def test_a_check_passes_on_virtual_devices(check, load_forking):
    checklist = load_forking('gpu_checklist', *TINY)
    name, result, found = checklist._run(check)
    assert (name, result) == (check, 'passed'), found


@pytest.mark.parametrize('num_devices, left_out', [
    (1, 'nothing; left out: replicas, which need --num_devices=2 at least'),
    (3, 'left out: replicas of several partitions, which need --num_devices=4 at least')])
def test_what_is_left_out_is_named_with_the_reason(num_devices, left_out, load_forking):
    checklist = load_forking('gpu_checklist', *TINY, f'--num_devices={num_devices}')
    _, result, found = checklist._run('group_statistics')
    assert result == 'passed' and left_out in found


def test_the_example_of_its_title_runs_checks_that_there_are(load_benchmark):
    checklist = load_benchmark('gpu_checklist')
    named, = re.findall('--checks=(\\S+)', checklist.__doc__)
    assert set(named.split(',')) <= set(checklist.CHECKS)


def test_a_check_that_fails_is_a_row_and_the_exit_code_is_1(load_benchmark, monkeypatch, capsys):
    checklist = load_benchmark('gpu_checklist', '--checks=sums,memory')
    monkeypatch.setattr(checklist, '_run', lambda name: [name, 'FAILED' if name == 'sums' else 'passed', 'why'])
    with pytest.raises(SystemExit) as ended:
        checklist.main([])
    assert ended.value.code == 1 and '| sums   | FAILED | why' in capsys.readouterr().out


def test_an_unknown_check_is_named(load_benchmark):
    checklist = load_benchmark('gpu_checklist', '--checks=sums,speed')
    with pytest.raises(checklist.app.UsageError, match='--checks=speed is unknown. Choose of equality, '):
        checklist.main([])
