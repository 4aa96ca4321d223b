import pytest

from lingpipe.pipeline import gpipe_layer
from lingpipe.planner import accelerators, resolution
from tests.planner import stacks

AUTO = {'num_partitions': 'auto', 'num_micro_batches': 'auto', 'recompute': 'auto'}
IDEAL = accelerators.Accelerator('ideal', 0, 1e9, 1e9, 1e18, 1e18)


def found(fields, most_partitions, **kwargs):
    return resolution.find_plan(stacks.setting(accelerator=IDEAL, **kwargs), stacks.body(**fields), most_partitions)


def test_without_a_memory_limit_a_plan_recomputes_nothing():
    """It takes all devices and the smallest micro-batches."""
    best = found(AUTO, 4)
    assert (best.schedule.num_devices, best.schedule.num_micro_batches, best.recompute) == (4, 32, 'none')


def test_the_fastest_of_all_plans_that_fit_is_taken():
    setting, p = stacks.setting(accelerator=IDEAL, memory_limit=3 * 10**5), stacks.body(**AUTO)
    candidates = list(resolution.all_plans(setting, p, resolution.choices(p, 8, stacks.BATCH, 4)))
    assert 0 < sum(plan.fits for plan in candidates) < len(candidates)
    best = resolution.find_plan(setting, p, 4)
    assert best.fits and best.step_time <= 1.01 * min(plan.step_time for plan in candidates if plan.fits)


def test_numbers_that_are_given_stay():
    best = found({**AUTO, 'num_partitions': 2, 'recompute': 'stage'}, None)
    assert (best.schedule.num_devices, best.recompute) == (2, 'stage')


def test_without_a_number_of_devices_the_fewest_that_fit_are_taken():
    def needed(num_partitions):
        return max(found({'num_partitions': num_partitions, 'num_micro_batches': 4}, None).device_bytes)

    best = found({'num_partitions': 'auto', 'num_micro_batches': 4}, None, memory_limit=needed(4))
    assert best.fits and best.schedule.num_devices == 4


def test_where_nothing_fits_the_plan_that_needs_least_is_shown():
    least = found(AUTO, 4, memory_limit=1000)
    assert not least.fits and least.schedule.num_devices == 4 and least.recompute != 'none'


def test_what_a_plan_chose_is_what_a_pipeline_takes():
    p = stacks.body(**AUTO)
    chosen = resolution.resolved(p, found(AUTO, 2))
    assert not resolution.is_open(chosen) and resolution.is_open(p)
    pipe = chosen.Instantiate()
    pipe.build_from_specs(stacks.specs())
    assert [len(part.layer_names) for part in pipe.partitions] == [4, 4]


def test_a_cut_that_memory_asked_for_is_the_one_that_the_pipeline_makes():
    fields = {'schedule': '1f1b', 'num_partitions': 2, 'num_micro_batches': 4}
    free = found(fields, None)
    limited = found(fields, None, memory_limit=max(free.device_bytes) - 1)
    pipe = resolution.resolved(stacks.body(**fields), limited).Instantiate()
    pipe.build_from_specs(stacks.specs())
    assert [len(part.layer_names) for part in pipe.partitions] == [4, 4] != [
        len(part.layer_names) for part in free.partitions]


def test_gpipe_layer_itself_refuses_auto():
    for field in AUTO:
        with pytest.raises(ValueError, match=rf"{field}='auto' is not resolved by GPipeLayer itself: "
                                             r".*lingpipe.plan\(params\)"):
            gpipe_layer.GPipeLayer(stacks.body(**{field: 'auto'}))


def test_wrong_fields_are_refused_though_others_are_auto():
    with pytest.raises(ValueError, match='num_micro_batches=0 is not possible'):
        resolution.validate(stacks.body(num_partitions='auto', num_micro_batches=0))
    resolution.validate(stacks.body(**AUTO))


def test_an_order_of_ones_own_that_goes_with_no_number_is_refused():
    order = [['0F0', '0B0'], ['1F0', '1B0']]
    with pytest.raises(ValueError, match="does not go with any of the numbers .* 'auto' tries"):
        found({'schedule': order, 'num_partitions': 'auto', 'num_micro_batches': 4}, 8)


@pytest.mark.parametrize('fields, num_devices', [
    ({'schedule': [['0F0', '1F0', '1B0', '0B0'], ['2F0', '2B0']]}, 2), ({'partition_by': [3, 6, 8]}, 3),
    ({'partition_by': 't|(t|)*2t*5'}, 4), ({'schedule': 'interleaved_1f1b', 'num_virtual_stages': 2}, 1)])
def test_other_numbers_of_devices_than_an_order_or_cut_has_are_left_out(fields, num_devices):
    setting = stacks.setting(accelerator=IDEAL, memory_limit=10**9, sizes=(stacks.BATCH, stacks.BATCH))
    p = stacks.body(**{'num_partitions': num_devices, 'num_micro_batches': 1, **fields})
    fewest = resolution.fewest_devices(setting, p, 3 if num_devices == 3 else 4)
    assert fewest.fits and fewest.schedule.num_devices == num_devices
    assert resolution.fewest_devices(stacks.setting(accelerator=IDEAL, memory_limit=1), p, 4) is None
