"""The checklist on virtual CPU devices: what it proves on GPUs it proves there."""


import pytest

TINY = ['--num_blocks=1', '--width=8', '--sequence_length=4', '--batch_size=8', '--num_micro_batches=2', '--num_steps=1']


@pytest.mark.parametrize('check', ['equality', 'group_statistics', 'half_precision'])
def test_a_check_passes_on_virtual_devices(check, load_forking):
    checklist = load_forking('gpu_checklist', *TINY)
    name, result, found = checklist._run(check)
    assert (name, result) == (check, 'passed'), found


def test_a_check_that_fails_is_a_row_and_the_exit_code_is_1(load_benchmark, monkeypatch, capsys):
    checklist = load_benchmark('gpu_checklist', '--checks=sums,memory')
    monkeypatch.setattr(checklist, '_run', lambda name: [name, 'FAILED' if name == 'sums' else 'passed', 'why'])
    with pytest.raises(SystemExit) as ended:
        checklist.main([])
    assert ended.value.code == 1 and '| sums   | FAILED | why' in capsys.readouterr().out
