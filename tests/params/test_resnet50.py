import math

import keras
import pytest
import tensorflow as tf

from lingpipe import model_registry, optimizers
from lingpipe.partition import layer_analysis

IMAGENET = 1_281_167
# Batch -> steps of the released configurations.
SGD = {'ResNet50Batch1024': (1024, 113_854), 'ResNet50Batch4096': (4096, 28_464)}
# Batch, steps, rate, epochs of warm-up, weight decay, epsilon.
LARS = {
    'ResNet50Batch8192': (8192, 14_232, 10.0, 5, 1e-4, 0.0), 'ResNet50Batch16384': (16_384, 7116, 25.0, 5, 1e-4, 0.0),
    'ResNet50Batch32768': (32_768, 3558, 32.0, 14, 1e-4, 0.0), 'ResNet50MLPerf4096': (4096, 22_536, 10.0, 5, 2e-4, 0.0),
    'ResNet50MLPerf16384': (16_384, 5634, 25.0, 5, 2e-4, 0.0),
    **{f'ResNet50MLPerf32768{cores}': (32_768, 2983, 31.2, 25, 1e-4, 1e-5) for cores in (
        '', 'Cores512', 'Cores1024', 'Cores2048')}}
# Replicas, images of each, replicas that share statistics; others have one replica of 128 images at a time.
REPLICAS = {f'ResNet50MLPerf32768Cores{cores}': (cores, images, group)
            for cores, images, group in ((512, 64, 1), (1024, 32, 1), (2048, 16, 8))}
PUBLISHED = [*SGD, *LARS]


def params_of(name):
    return model_registry.GetParams(f'params.resnet50.{name}', 'Train')


def test_the_network_is_the_published_one():
    networks = [params_of(name).task.body.layers for name in PUBLISHED if name not in REPLICAS]
    assert all(network == networks[0] for network in networks)
    described = layer_analysis.analyse_layers(networks[0], tf.TensorSpec([1, 224, 224, 3]))
    assert sum(layer.num_parameters for layer in described) == 25_557_032


@pytest.mark.parametrize('name', PUBLISHED)
def test_batches_images_precision_and_replicas_that_share_statistics(name):
    params = params_of(name)
    assert params.input.batch_size == {**SGD, **LARS}[name][0]
    assert (params.input.image_size, params.input.augmentation, params.input.label_offset) == (224, 'resnet', 0)
    num_replicas, micro_batch_size, group_size = REPLICAS.get(name, (1, 128, 1))
    assert params.task.body.num_replicas == num_replicas
    assert params.input.batch_size == num_replicas * params.task.body.num_micro_batches * micro_batch_size
    assert (params.task.body.schedule,
            params.task.body.recompute) == ('1f1b', 'layer')  # memory does not grow with the batch
    assert params.task.dtype_policy == 'mixed_bfloat16'
    assert params.train.max_steps == {**SGD, **LARS}[name][1]
    *blocks, _ = params.task.body.layers
    assert {block.batch_norm_group_size for block in blocks} == {group_size}


@pytest.mark.parametrize('name', SGD)
def test_small_batches_train_with_momentum(name):
    params, batch_size = params_of(name), SGD[name][0]
    optimizer, schedule = params.train.optimizer, params.train.lr_schedule.Instantiate()
    assert (optimizer.cls, optimizer.momentum, optimizer.nesterov) == (keras.optimizers.SGD, 0.9, True)
    assert (params.train.l2_regularizer_weight, params.task.label_smoothing) == (1e-4, 0.0)
    epoch, rate = IMAGENET / batch_size, 0.1 * batch_size / 256
    steps = [math.ceil(epochs * epoch) for epochs in (2.5, 5, 30, 60, 80, 90)]
    assert [float(schedule(step)) for step in steps] == pytest.approx(
        [rate / 2, rate, rate / 10, rate / 100, rate / 1000, rate / 1000], rel=1e-2)


@pytest.mark.parametrize('name', LARS)
def test_large_batches_train_with_lars(name):
    params = params_of(name)
    batch_size, max_steps, rate, warmup_epochs, weight_decay, epsilon = LARS[name]
    optimizer, schedule = params.train.optimizer, params.train.lr_schedule
    assert (optimizer.cls, schedule.cls) == (optimizers.LARS, optimizers.WarmupPolynomialDecay)
    assert (optimizer.momentum, optimizer.eeta, optimizer.nesterov) == (0.9, 0.001, False)
    assert (optimizer.weight_decay, optimizer.epsilon) == (weight_decay, epsilon)
    assert (schedule.initial_learning_rate, schedule.max_steps, schedule.power, schedule.end_learning_rate) == (
        rate, max_steps, 2.0, 1e-4)
    assert schedule.warmup_steps == pytest.approx(warmup_epochs * IMAGENET / batch_size)
    assert (params.train.l2_regularizer_weight, params.task.label_smoothing) == (0.0, 0.1)
