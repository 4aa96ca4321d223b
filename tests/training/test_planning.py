import keras
import pytest
import tensorflow as tf

import lingpipe
from lingpipe import model_registry
from lingpipe.planner import search


def test_a_plan_counts_the_input_and_slots_of_an_experiment(tiny):
    planned = lingpipe.plan(tiny.params(), device_memory='1GiB')
    weights, slots = (sum(getattr(part, kind) for part in planned.plan.partitions) for kind in ('gradients', 'slots'))
    assert slots == 2 * weights  # momentum and a moving average
    assert planned.plan.setting.stack.batch_size == 32
    assert str(planned).splitlines()[2].split()[:3] == ['0', '0', 'flatten_0']
    assert planned.sentence == 'Fits on 2 devices of 1.00 GiB with M=2, recompute=stage.'


def test_a_plan_that_does_not_fit_says_by_how_much_and_what_would(tiny):
    memory = max(lingpipe.plan(tiny.params()).plan.device_bytes)
    params = tiny.params(task__body__num_partitions=1)
    one = max(lingpipe.plan(params).plan.device_bytes)
    planned = lingpipe.plan(params, device_memory=f'{memory}B')
    assert not planned.plan.fits
    assert f'the fullest lacks {(one - memory) / 1024:.2f} KiB' in planned.sentence
    assert ' It fits on 2 devices of ' in planned.sentence and 'no, ' in str(planned)


def test_without_accelerator_and_memory_the_plan_says_what_is_needed(tiny):
    planned = lingpipe.plan(tiny.params())
    assert planned.sentence.startswith('Needs ') and 'limit' not in str(planned).splitlines()[0]
    assert 'Seconds need an accelerator' in str(planned) and ' examples/s' not in str(planned)


@pytest.fixture
def dense():
    inputs = keras.Input([8])
    hidden = keras.layers.Dense(16, activation='relu')(keras.layers.Dense(16, activation='relu')(inputs))
    return keras.Model(inputs, keras.layers.Dense(4)(hidden))


def test_the_plan_of_a_keras_model_gives_the_fields_of_its_pipeline(dense):
    planned = lingpipe.plan(dense, 'a100', num_devices=2, batch_size=8)
    assert sum(part.gradients for part in planned.plan.partitions) == 4 * dense.count_params()
    pipe = lingpipe.GPipeLayer.from_keras(dense, **planned.fields)
    assert len(pipe.stages) == planned.plan.schedule.num_stages and pipe.params.recompute == planned.plan.recompute


def test_pipelines_and_compiled_models_are_planned_as_they_are(dense):
    pipe = lingpipe.GPipeLayer.from_keras(dense, num_partitions=2, num_micro_batches=4)
    model = lingpipe.PipelineModel(pipe)
    model.compile(keras.optimizers.SGD(momentum=0.9), 'mse')
    of_pipe, of_model = (lingpipe.plan(each, batch_size=8).plan for each in (pipe, model))
    assert [len(each.schedule.stage_devices) for each in (of_pipe, of_model)] == [2, 2]
    assert (of_pipe.schedule.num_micro_batches, of_pipe.setting.num_slots, of_model.setting.num_slots) == (4, 2, 1)
    dense.compile('sgd', 'mse')
    assert lingpipe.plan(dense, batch_size=8).plan.setting.num_slots == 0


class WithoutConfig(keras.optimizers.Optimizer):
    def __init__(self):
        super().__init__(0.1, name='without_config')


def test_an_optimizer_that_cannot_be_copied_counts_as_adam(dense):
    model = lingpipe.PipelineModel(lingpipe.GPipeLayer.from_keras(dense, num_partitions=2, num_micro_batches=4))
    model.compile(WithoutConfig(), 'mse')
    assert lingpipe.plan(model, batch_size=8).plan.setting.num_slots == 2


@pytest.mark.parametrize('model, error, words', [
    (keras.Sequential([keras.Input([4]), keras.layers.Dense(2)]), ValueError, 'Give batch_size'),
    (lingpipe.GPipeLayer(layers=[keras.layers.Dense(2)]), ValueError, 'Give tf.TensorSpec'),
    (keras.layers.Dense(2), TypeError, 'Give a Keras model, a GPipeLayer')], ids=['no batch', 'no input', 'a layer'])
def test_what_cannot_be_planned_says_what_to_give(model, error, words):
    with pytest.raises(error, match=words):
        lingpipe.plan(model)
    with pytest.raises(ValueError, match='batch_size=0 is not a number of rows'):
        lingpipe.plan(model, batch_size=0)


def test_the_trainer_resolves_auto_by_measured_layers(tiny, tmp_path, capsys):
    fields = {f'task__body__{field}': 'auto' for field in search.FIELDS}
    trainer = tiny.trainer(tmp_path, **fields, train__max_steps=1)
    trainer.run()
    assert "'auto': num_partitions=" in capsys.readouterr().out
    written = (tmp_path / 'control/params.txt').read_text()
    assert {line.split(' : ')[0] for line in written.splitlines() if "'auto'" in line} == {
        'task.body.tpu_route', 'task.body.gradient_sum'}


def test_replicas_share_the_batch_and_the_slots_and_wait_for_the_sums(tiny):
    one = lingpipe.plan(tiny.params(input__batch_size=16), 'v3').plan
    two = lingpipe.plan(tiny.params(task__body__num_replicas=2), 'v3').plan
    assert [part.slots for part in two.partitions] == [part.slots // 2 for part in one.partitions]
    assert two.summing_time == pytest.approx(max(part.gradients for part in one.partitions) / 100e9)
    assert two.throughput == pytest.approx(32 / (two.timeline.seconds + two.summing_time))


def test_layers_alone_need_input_specs(tiny):
    body = tiny.params().task.body
    with pytest.raises(ValueError, match=r'input_specs=None: .* Give tf.TensorSpec'):
        lingpipe.plan(body)
    body.num_optimizer_slots = 0
    planned = lingpipe.plan(body, input_specs=tf.TensorSpec([32, 8, 8, 1]))
    assert all(part.slots == 0 for part in planned.plan.partitions)
    assert planned.params.num_partitions == 2


def test_gpipes_largest_transformer_is_planned_without_being_allocated():
    params = model_registry.GetParams('params.transformer_lm.Transformer1663', 'Train')
    params.task.body.recompute = 'auto'
    planned = lingpipe.plan(params, 'v3')
    assert sum(part.num_parameters for part in planned.plan.partitions) == 83_876_914_432
    assert planned.plan.schedule.num_devices == 128 and planned.plan.fits and planned.params.task.body.recompute == 'layer'
