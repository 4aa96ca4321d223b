"""What holds for every model of params/: it is known, its module has a default, and its params are read back."""

import json
import lzma
import pathlib

import keras
import pytest
import tensorflow as tf

from lingpipe import model_registry
from lingpipe.optimizers import training_optimizer

DEFAULTS = {'amoebanet': 'AmoebaNetDDigits', 'resnet50': 'ResNet50Digits', 'transformer_lm': 'PydocBytes',
            'transformer_nmt': 'SpokenNumbers'}
NUM_MODELS = {'amoebanet': 11, 'resnet50': 12, 'transformer_lm': 7, 'transformer_nmt': 6}
MODELS = sorted(name for name in model_registry.ListModels().models if name.split('.')[1] in DEFAULTS)
of_all_models = pytest.mark.parametrize('name', [
    pytest.param(name, marks=pytest.mark.slow if name.endswith('1663') else ()) for name in MODELS])


@pytest.mark.parametrize('module', DEFAULTS)
def test_all_models_of_a_module_are_known_and_one_is_the_default(module):
    assert sum(name.split('.')[1] == module for name in MODELS) == NUM_MODELS[module]
    assert model_registry.GetClass(f'params.{module}').__name__ == DEFAULTS[module]


@of_all_models
def test_params_read_back_from_their_text(name):
    changed = model_registry.GetParams(name, 'Train')
    changed.train.Set(max_steps=7, clip_gradient_norm_to_value=0.125)
    changed.train.lr_schedule = changed.train.lr_schedule.Copy()
    changed.task.body.layers[-1].name = 'last'
    for read, write in (('FromText', 'ToText'), ('FromTextWithTypes', 'ToTextWithTypes')):
        params = model_registry.GetParams(name, 'Train')
        assert changed != params
        assert getattr(params, read)(getattr(changed, write)()) == changed


def shapes_of_rows(p):
    return [tuple(spec.shape[1:]) for spec in tf.nest.flatten(p.cls.InputSpec(p))]


@of_all_models
def test_task_optimizer_and_inputs_go_together(name):
    params, experiment = model_registry.GetParams(name, 'Train'), model_registry.GetClass(name)()
    params.task.body.Set(num_partitions=1, num_replicas=1)
    names = [layer.name for layer in params.task.Instantiate().body.stack]
    assert len(set(names)) == len(names)
    optimizer = training_optimizer.build_optimizer(params.train, [keras.Variable([1.0])])
    assert float(optimizer.learning_rate) == 0.0  # every one warms up
    datasets = experiment.GetDatasetNames()
    assert [each for each in datasets if each != 'Dev'] == ['Train', 'Test']
    for p in map(experiment.GetDatasetParams, datasets):
        assert shapes_of_rows(p) == shapes_of_rows(params.input)


RECORDED = json.loads(lzma.open(pathlib.Path(__file__).with_name('recorded_params.json.xz')).read())  # name -> text


@pytest.mark.parametrize('name', RECORDED)
def test_every_line_of_a_recorded_text_is_read_as_it_was_written(name):
    params = model_registry.GetParams(name, 'Test')  # so that some lines change a value
    paths = {line.partition(' : ')[0] for line in params.ToText().splitlines()}
    lines = [line for line in RECORDED[name].splitlines() if line.partition(' : ')[0] in paths]
    assert len(lines) > 0.8 * len(RECORDED[name].splitlines())  # the other fields are gone
    assert set(lines) <= set(params.FromText('\n'.join(lines)).ToText().splitlines())
