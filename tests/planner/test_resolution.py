import keras
import numpy as np
import pytest
import tensorflow as tf

import lingpipe
from lingpipe import layers
from lingpipe.partition import accelerators, layer_memory, layer_profile
from lingpipe.pipeline import gpipe_layer, layer_sources
from lingpipe.planner import resolution, search
from lingpipe.training import inspection
from tests.planner import stacks

AUTO = {'num_partitions': 'auto', 'num_micro_batches': 'auto', 'recompute': 'auto'}
IDEAL = accelerators.Accelerator('ideal', 0, 1e9, 1e9, 1e18, 1e18)


def best(setting, p, num_devices=None):
    return search.find_plans([setting], p, num_devices)[0]


def all_plans(setting, p, most_partitions):
    """Every plan that params allow, without a bound."""
    numbers = [number for number in range(1, most_partitions + 1) if number & (number - 1) == 0]
    return filter(None, (search._plan(each, p) for each in search._combinations(setting, p, numbers)))


def found(fields, most_partitions, **kwargs):
    return best(stacks.setting(accelerator=IDEAL, **kwargs), stacks.body(**fields), most_partitions)


def test_without_a_memory_limit_a_plan_recomputes_nothing():
    """It takes all devices and the smallest micro-batches."""
    best = found(AUTO, 4)
    assert (best.schedule.num_devices, best.schedule.num_micro_batches, best.recompute) == (4, 32, 'none')


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


def test_more_replicas_than_devices_are_refused():
    p = stacks.body(**AUTO).Set(num_replicas=4)
    with pytest.raises(ValueError, match='num_replicas=4 is more than the 2 devices.*Set num_replicas to 2 or less'):
        lingpipe.plan(p, input_specs=stacks.specs(), num_devices=2)


def test_more_virtual_stages_than_layers_of_a_model_are_refused():
    p = gpipe_layer.GPipeLayer.Params().Set(
        name='body', model=lingpipe.KerasModelParams(two_layers), schedule='circular', num_virtual_stages=3, **AUTO)
    with pytest.raises(ValueError, match='num_virtual_stages=3 is more than the 2 layers.*2 or less'):
        lingpipe.plan(p, input_specs=tf.TensorSpec([8, 4]), num_devices=2)


def test_a_part_of_a_model_that_stays_whole_does_not_stop_auto():
    p = gpipe_layer.GPipeLayer.Params().Set(name='body', model=lingpipe.KerasModelParams(with_a_whole_part), **AUTO)
    planned = lingpipe.plan(p, input_specs=tf.TensorSpec([8, 4]), num_devices=4)
    assert planned.params.num_partitions <= 2


def two_layers():
    return keras.Sequential([keras.Input([4]), keras.layers.Dense(4), keras.layers.Dense(4)])


class Whole(keras.Model):
    """Reads a weight in its call, which no layer does."""

    def build(self, input_shape):
        self.scale = self.add_weight(shape=[], initializer='ones')

    def call(self, inputs):
        return inputs * self.scale


def with_a_whole_part():
    return keras.Sequential([keras.Input([4]), keras.layers.Dense(4), Whole()])


def test_an_order_of_ones_own_that_goes_with_no_number_is_refused():
    order = [['0F0', '0B0'], ['1F0', '1B0']]
    with pytest.raises(ValueError, match="does not go with any of the numbers .* 'auto' tries"):
        found({'schedule': order, 'num_partitions': 'auto', 'num_micro_batches': 4}, 8)


@pytest.mark.parametrize('fields, num_devices', [
    ({'schedule': [['0F0', '1F0', '1B0', '0B0'], ['2F0', '2B0']]}, 2), ({'partition_by': [3, 6, 8]}, 3),
    ({'schedule': 'interleaved_1f1b', 'num_virtual_stages': 2}, 1)])
def test_other_numbers_of_devices_than_an_order_or_cut_has_are_left_out(fields, num_devices):
    setting = stacks.setting(accelerator=IDEAL, memory_limit=10**9, sizes=(stacks.BATCH, stacks.BATCH))
    p = stacks.body(**{'num_partitions': num_devices, 'num_micro_batches': 1, **fields})
    fewest = search.fewest_devices(setting, p, 3 if num_devices == 3 else 4)
    assert fewest.fits and fewest.schedule.num_devices == num_devices
    assert search.fewest_devices(stacks.setting(accelerator=IDEAL, memory_limit=1), p, 4) is None


EVERYTHING = dict.fromkeys(search.FIELDS, 'auto')
CORES = accelerators.Accelerator('core', 0, 1e9, 1e9, 1e9, 1e9)


def settings(num_devices, memory_limit=None):
    sizes = [rows for rows in range(1, stacks.BATCH + 1) if stacks.BATCH % rows == 0]
    one = stacks.setting(accelerator=CORES, memory_limit=memory_limit, sizes=sizes)
    counts = search.numbers_of_replicas(stacks.body(**EVERYTHING), num_devices)
    return [one, *(resolution.for_replicas(one, count) for count in counts[1:])]


def every_plan(num_devices, memory_limit=None):
    """All settings one by one, without a bound."""
    p = stacks.body(**EVERYTHING)
    for setting in settings(num_devices, memory_limit):
        yield from all_plans(setting, p, num_devices // setting.num_replicas)


@pytest.mark.parametrize('limit', [None, 2.2 * 10**5])
def test_auto_decides_everything_together(limit):
    """K, R, M, schedule, V and recompute: the best of all combinations."""
    chosen, *others = search.find_plans(settings(4, limit), stacks.body(**EVERYTHING), 4)
    tried = list(every_plan(4, limit))
    assert len({(plan.schedule.name, plan.setting.num_replicas) for plan in tried}) > 12
    assert chosen.fits and chosen.step_time <= 1.01 * min(plan.step_time for plan in tried if plan.fits)
    assert len(others) == search.NUM_SHOWN - 1
    assert all(plan.step_time >= chosen.step_time / 1.01 for plan in others if plan.fits)


def test_a_micro_batch_is_measured_once_for_all_plans(monkeypatch):
    measured = []

    def profile(layer_params, input_specs, *unused):
        measured.append(input_specs.shape[0])
        return [layer_profile.LayerTime(1e-3, 2e-3, 1e-3)] * len(layer_params)

    monkeypatch.setattr(layer_profile, 'profile_layers', profile)
    p = stacks.body(**{**EVERYTHING, 'num_replicas': 1, 'num_partitions': 2, 'partition_by': 'time'})
    setting = resolution.make_setting(p, stacks.specs(), profile_device='CPU:0')
    search.find_plans([setting], p, 2)
    assert sorted(measured) == [1, 2, 4, 8, 16, 32]


def test_one_open_field_leaves_the_others_alone():
    chosen = best(
        settings(2)[0], stacks.body(num_partitions=2, num_micro_batches=4, schedule='auto', num_virtual_stages=2), 2)
    assert chosen.schedule.num_virtual_stages == 2 and chosen.schedule.num_micro_batches == 4
    chosen = best(
        settings(2)[0], stacks.body(num_partitions=2, num_micro_batches=4, schedule='zb_v', num_virtual_stages='auto'), 2)
    assert (chosen.schedule.name, chosen.schedule.num_virtual_stages) == ('zb_v', 2)


def test_the_table_says_why_the_others_lost():
    plans = search.find_plans(settings(4, 2.2 * 10**5), stacks.body(**EVERYTHING), 4)
    lines = inspection.comparison(plans).splitlines()
    assert len(lines) == 2 + len(plans) and 'chosen' in lines[2]
    first = best(settings(1)[0], stacks.body(num_micro_batches=4, recompute='none'), 1)
    again = best(settings(1)[0], stacks.body(num_micro_batches=4, recompute='stage'), 1)
    assert inspection.comparison([first, again]).endswith('% slower')


def test_sizes_between_those_that_were_traced_are_what_a_trace_gives():
    params = [layers.KerasParams(keras.layers.Dense, units=8, activation='gelu'), layers.KerasParams(
        keras.layers.BatchNormalization)]
    specs = tf.TensorSpec([12, 5, 6])
    stack = resolution.LayerStack(layer_sources.LayersOfParams(params), specs, [1, 12])
    for size in (1, 3, 4, 12):
        first, last = layer_memory.layer_memories(params, tf.TensorSpec([size, 5, 6]))
        expected = [
            first, last._replace(internals=last.internals + last.outputs, recomputed=last.recomputed + last.outputs)]
        for found, memory in zip(stack.memories(size), expected):
            assert found[:-2] == memory[:-2]
            np.testing.assert_allclose(found[-2:], memory[-2:], rtol=0.05)  # fullest moments are not quite on a line


def test_sizes_of_a_batch_of_a_billion_rows_are_in_proportion():
    params = [layers.KerasParams(keras.layers.Dense, units=8, activation='gelu')]
    stack = resolution.LayerStack(layer_sources.LayersOfParams(params), tf.TensorSpec([10**9, 6]), [1, 10**9])
    memory, larger = stack.memories(10**8)[0], stack.memories(10**9)[0]
    assert memory.outputs == 4 * 8 * 10**8 and memory.internals == pytest.approx(larger.internals / 10)


def test_equal_layers_are_looked_at_once(monkeypatch):
    traced = []
    trace = tf.function
    monkeypatch.setattr(tf, 'function', lambda *args, **kwargs: traced.append(1) or trace(*args, **kwargs))
    stack = stacks.setting(num_layers=500, sizes=[4]).stack
    stack.memories(4)
    assert len(stack) == 500 and len(traced) == 2  # once for operations, once for memory


def test_a_large_product_is_bound_by_arithmetic_and_a_small_one_by_memory():
    fast_memory = accelerators.Accelerator('x', 0, 1e9, 1e9, 1e15, 1e9)
    slow_memory = accelerators.Accelerator('x', 0, 1e15, 1e15, 1e3, 1e9)
    stack = stacks.setting().stack
    size = 4
    operations = size * (2 * stacks.WIDTH * stacks.WIDTH + stacks.WIDTH)
    np.testing.assert_allclose(
        stack.least_times(size, fast_memory, 'float32')[0], np.array([1, 2, 1]) * operations / 1e9)
    moved = stacks.WEIGHTS + 2 * size * stacks.ROW
    assert stack.least_times(size, slow_memory, 'float32')[0].forward_seconds == pytest.approx(moved / 1e3)
