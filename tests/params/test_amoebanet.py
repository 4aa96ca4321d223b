import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from lingpipe import model_registry
from lingpipe.layers import amoebanet
from lingpipe.optimizers import learning_rate_schedules
from lingpipe.training import checkpoint_contents, experiment, initial_weights

# Genotype, cells, filters and partitions: tables 1 and 2 of GPipe (arXiv 1811.06965), and its section on images.
PUBLISHED = {
    'AmoebaNetD18x208': ('D', 18, 208, 1), 'AmoebaNetD18x256': ('D', 18, 256, 2), 'AmoebaNetD18x416': ('D', 18, 416, 1),
    'AmoebaNetD18x544': ('D', 18, 544, 2), 'AmoebaNetD36x544': ('D', 36, 544, 4), 'AmoebaNetD72x512': ('D', 72, 512, 8),
    'AmoebaNetB18x512': ('B', 18, 512, 4)}


def params_of(name):
    return model_registry.GetParams(f'params.amoebanet.{name}', 'Train')


@pytest.mark.parametrize('name', PUBLISHED)
def test_the_network_is_the_published_one(name):
    genotype, num_cells, filters, num_partitions = PUBLISHED[name]
    params = params_of(name)
    cells = [layer for layer in params.task.body.layers if re.fullmatch(r'cell_\d+', layer.name)]
    assert len(cells) == num_cells
    assert [cells[0].filters, cells[-1].filters] == [filters, 4 * filters]
    assert {cell.genotype for cell in cells} == {genotype}
    assert params.task.body.num_partitions == num_partitions
    assert params.task.body.layers[-1].num_classes == 1001
    assert params.input.label_offset == 1
    assert params.input.image_size == (480 if genotype == 'B' else 224)


@pytest.mark.parametrize('name', PUBLISHED)
def test_training_has_the_published_constants(name):
    params = params_of(name)
    train, optimizer, schedule = params.train, params.train.optimizer, params.train.lr_schedule
    assert optimizer.cls is keras.optimizers.RMSprop
    assert (optimizer.rho, optimizer.momentum, optimizer.epsilon, optimizer.centered) == (0.9, 0.9, 1.0, False)
    assert schedule.cls is learning_rate_schedules.WarmupExponentialDecay
    assert schedule.initial_learning_rate == pytest.approx(0.015 * params.input.batch_size / 256)
    epoch = 1_281_167 / params.input.batch_size
    assert schedule.warmup_steps == round(3 * epoch)
    assert schedule.decay_steps == round(2.4 * epoch)
    assert (schedule.decay_rate, schedule.minimum_fraction) == (0.97, 1e-4)
    assert train.max_steps == round(100 * epoch)
    assert (train.clip_gradient_norm_to_value, train.l2_regularizer_weight, train.ema_decay) == (10.0, 4e-5, 0.9999)
    assert (params.task.label_smoothing, params.task.auxiliary_loss_weight) == (0.1, 0.4)


def test_weights_but_those_of_the_softmax_layers_come_from_imagenet(tmp_path, capsys):
    params = params_of('AmoebaNetBCifar10')
    params.task.body.Set(num_partitions=1, layers=amoebanet.amoebanet_layers('B', 2, 8, num_classes=10))
    body = experiment.build_task(params, tf.TensorSpec([2, 64, 64, 3])).body
    named, random = checkpoint_contents.model_variables(body), np.random.default_rng(0)
    fresh = {name: variable.numpy() for name, variable in named.items()}
    stored = {name: random.normal(size=[1001 if size == 10 else size for size in value.shape]).astype('float32')
              for name, value in fresh.items()}
    tree = {}
    for name, value in stored.items():
        layer, _, leaf = name.rpartition('/')
        tree.setdefault(layer, {})[leaf] = tf.Variable(value)
    path = tf.train.Checkpoint(model=tree).write(str(tmp_path / 'imagenet'))
    (rules,) = params.train.init_from_checkpoint_rules.values()
    params.train.init_from_checkpoint_rules = {path: rules}
    initial_weights.load(params.train, body)
    softmax = {name for name in named if name.startswith(('head/', 'auxiliary_head/010_kernel', 'auxiliary_head/011_bias'))}
    assert len(softmax) == 4 and all(1001 in stored[name].shape for name in softmax)
    for name, variable in named.items():
        np.testing.assert_array_equal(variable, fresh[name] if name in softmax else stored[name], err_msg=name)
    assert f'{len(named) - 4} of {len(named)} variables come from {path}; these are newly initialised: auxiliary_head/' in capsys.readouterr().out
