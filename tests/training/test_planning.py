import io

import pytest
import tensorflow as tf
from PIL import Image

import lingpipe
from lingpipe import hyperparams, model_registry
from lingpipe.planner import search
from lingpipe.training import planning


def test_a_plan_counts_the_input_and_slots_of_an_experiment(tiny):
    planned = lingpipe.plan(tiny.params(), device_memory='1GiB')
    weights, slots = (sum(getattr(part, kind) for part in planned.plan.partitions) for kind in ('gradients', 'slots'))
    assert slots == 2 * weights  # momentum and a moving average
    assert planned.plan.setting.stack.batch_size == 32
    assert str(planned).splitlines()[2].split()[:3] == ['0', '0', 'flatten_0']
    assert planned.sentence == 'Fits on 2 devices of 1.00 GiB with M=2, recompute=stage.'


def test_what_was_auto_is_a_number_in_the_params_of_the_plan(tiny):
    params = tiny.params(
        task__body__num_partitions='auto', task__body__recompute='auto', task__body__num_micro_batches='auto')
    body = lingpipe.plan(params, num_devices=2).params.task.body
    assert body.num_partitions in (1, 2) and body.num_micro_batches in (1, 2, 4, 8, 16, 32) and body.recompute == 'none'
    assert params.task.body.num_partitions == 'auto'


def test_numbers_may_be_set_to_auto_and_back_from_the_command_line(tiny):
    params = tiny.params()
    hyperparams.ApplyOverrides(params, "task.body.num_partitions=auto; task.body.num_micro_batches='auto'")
    assert (params.task.body.num_partitions, params.task.body.num_micro_batches) == ('auto', 'auto')
    hyperparams.ApplyOverrides(params, 'task.body.num_partitions=2')
    assert params.task.body.num_partitions == 2


def test_a_plan_that_does_not_fit_says_by_how_much_and_what_would(tiny):
    memory = max(lingpipe.plan(tiny.params()).plan.device_bytes)
    params = tiny.params(task__body__num_partitions=1)
    one = max(lingpipe.plan(params).plan.device_bytes)
    planned = lingpipe.plan(params, device_memory=memory)
    assert not planned.plan.fits
    assert f'the fullest lacks {(one - memory) / 1024:.2f} KiB' in planned.sentence
    assert ' It fits on 2 devices of ' in planned.sentence and 'no, ' in str(planned)


def test_without_accelerator_and_memory_the_plan_says_what_is_needed(tiny):
    planned = lingpipe.plan(tiny.params())
    assert planned.sentence.startswith('Needs ') and 'limit' not in str(planned).splitlines()[0]


def test_what_real_steps_take_stands_beside_the_lower_bound(tiny):
    planned = lingpipe.plan(tiny.params(), 'a100')
    least, about = str(planned).split('\n\n')[1].splitlines()[1:]
    seconds = planned.plan.about_time
    assert 'at a100\'s peaks: a lower bound' in least
    assert about == (f'About {1e3 * seconds:.3g} ms ({1e3 * seconds / 1.1:.3g} ms to {1e3 * seconds / 0.9:.3g} ms) at '
                     f'what a100 was seen to reach, {32 / seconds:,.4g} examples/s')


def test_where_no_real_steps_are_known_the_plan_says_so(tiny):
    text = str(lingpipe.plan(tiny.params(), 'v3'))
    assert 'How much longer real steps take is not known: none were measured on v3' in text and 'About' not in text
    assert 'How much longer' not in str(
        lingpipe.plan(tiny.params(task__body__partition_by='time'), profile_device='CPU:0'))


def test_the_picture_is_a_png(tiny):
    image = Image.open(io.BytesIO(lingpipe.plan(tiny.params(), 'v3').png()))
    assert image.format == 'PNG'


def test_the_trainer_resolves_auto_by_measured_layers(tiny, tmp_path, capsys):
    fields = {f'task__body__{field}': 'auto' for field in search.FIELDS}
    trainer = tiny.trainer(tmp_path, **fields, train__max_steps=1)
    trainer.run()
    assert "'auto': num_partitions=" in capsys.readouterr().out
    written = (tmp_path / 'control/params.txt').read_text()
    assert {line.split(' : ')[0] for line in written.splitlines() if "'auto'" in line} == {
        'task.body.tpu_route', 'task.body.gradient_sum'}


def test_devices_that_one_pipeline_does_not_need_run_others(tiny):
    planned = lingpipe.plan(tiny.params(task__body__num_replicas='auto'), num_devices=6)
    assert (planned.params.task.body.num_partitions, planned.params.task.body.num_replicas) == (2, 3)
    assert planned.sentence.startswith('Needs ') and ' of 3 replicas of 2 devices with M=2' in planned.sentence


def test_replicas_share_the_batch_and_the_slots_and_wait_for_the_sums(tiny):
    one = lingpipe.plan(tiny.params(input__batch_size=16), 'v3').plan
    two = lingpipe.plan(tiny.params(task__body__num_replicas=2), 'v3').plan
    assert [part.slots for part in two.partitions] == [part.slots // 2 for part in one.partitions]
    assert two.summing_time == pytest.approx(max(part.gradients for part in one.partitions) / 100e9)
    assert two.throughput == pytest.approx(32 / (two.timeline.step_time + two.summing_time))


def test_layers_alone_need_input_specs(tiny):
    body = tiny.params().task.body
    with pytest.raises(ValueError, match=r'input_specs=None: .* Give tf.TensorSpec'):
        lingpipe.plan(body)
    planned = lingpipe.plan(body, input_specs=tf.TensorSpec([32, 8, 8, 1]), num_optimizer_slots=0)
    assert all(part.slots == 0 for part in planned.plan.partitions)
    assert planned.params.num_partitions == 2


def test_a_batch_of_open_size_cannot_be_planned(tiny):
    with pytest.raises(ValueError, match='A plan needs every size of the input'):
        lingpipe.plan(tiny.params().task.body, input_specs=tf.TensorSpec([None, 8, 8, 1]))


def test_gpipes_largest_transformer_is_planned_without_being_allocated():
    params = model_registry.GetParams('params.transformer_lm.Transformer1663', 'Train')
    params.task.body.recompute = 'auto'
    planned = lingpipe.plan(params, 'v3')
    assert sum(part.num_parameters for part in planned.plan.partitions) == 83_876_914_432
    assert planned.plan.schedule.num_devices == 128 and planned.plan.fits and planned.params.task.body.recompute == 'layer'


def test_activations_take_half_in_half_precision_and_weights_do_not(tiny):
    full, half = (lingpipe.plan(tiny.params(task__dtype_policy=policy)).plan
                  for policy in ('float32', 'mixed_bfloat16'))
    assert full.setting.dtype == 'float32' and half.setting.dtype == 'bfloat16'
    for one, other in zip(full.partitions, half.partitions):
        assert one.weights == other.weights and one.working > other.working


def test_params_without_auto_stay_as_they_are(tiny):
    params = tiny.params()
    assert planning.resolved(params) is params
