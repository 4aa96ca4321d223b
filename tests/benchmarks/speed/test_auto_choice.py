import pytest

_TINY = ['--model=decoder', '--num_blocks=2', '--width=8', '--sequence_length=4', '--batch_size=4', '--num_steps=1',
         '--counts=2', '--schedules=1f1b', '--recompute=none']


def test_the_choice_is_measured_among_all_others(run_benchmark, table):
    text = run_benchmark('speed.auto_choice', *_TINY)
    rows = table(text)
    has_own_cut = "'auto' chose (2," in text  # else it is among the settings that are measured anyway
    assert len(rows) == 2 + has_own_cut and rows[0]['of best'] == '1.000'
    assert "'auto' chose (" in text and 'above the best. Goal 3%' in text


def test_every_schedule_is_tried_with_stages_that_it_can_have(load_benchmark):
    found = load_benchmark('speed.auto_choice', '--counts=4').choices()
    assert {choice.schedule: choice.num_virtual_stages for choice in found}['zb_v'] == 2
    assert all(choice.num_partitions * choice.num_replicas == 2 for choice in found)
    assert [choice.num_micro_batches for choice in found if choice.num_replicas == 2] == pytest.approx([2, 2])
