"""How many images each worker of a cluster decodes in a step, and whether the workers train as one.

    python -m benchmarks.scaling.records_per_worker

A small convolutional network learns the digits with two replicas: both in one process, or one in each of two workers.
What decodes images counts them here; images are decoded at every visit, one call after another, and none ahead.
"""

import contextlib
import functools

import keras
import tensorflow as tf
from absl import app, flags

from benchmarks.support import common
from lingpipe import base_model_params, layers
from lingpipe.cluster import cluster_config
from lingpipe.input import image_input, image_pixels
from lingpipe.models import image_classifier
from lingpipe.placements import worker_training
from lingpipe.training import experiment

_CACHES = flags.DEFINE_list('caches', ['none', 'encoded'], "What stays in memory; 'none': files are read.")
_NUM_STEPS = flags.DEFINE_integer('num_steps', 20, 'Training steps.', lower_bound=1)
_BATCH_SIZE = flags.DEFINE_integer('batch_size', 128, 'Rows of a whole batch, a multiple of 64.', lower_bound=64)
_HEADER = ['images in memory', 'workers', 'decoded per worker and step', 'final loss']
_NUM_REPLICAS = 2


class SmallNetwork(base_model_params.SingleTaskModelParams):
    """Two layers, for the digits."""

    def Train(self):
        return image_input.ImageInput.Params().Set(
            dataset='digits', batch_size=_BATCH_SIZE.value, augmentation='digits', num_parallel_calls=1, prefetch=0)

    def Task(self):
        p = image_classifier.ImageClassifier.Params().Set(name='small_network')
        p.body.Set(num_partitions=1, num_micro_batches=1, layers=[
            layers.KerasParams(keras.layers.Conv2D, filters=8, kernel_size=3, strides=2, activation='relu'),
            layers.KerasParams(keras.layers.Flatten),
            layers.KerasParams(keras.layers.Dense, units=10)])
        p.train.Set(max_steps=_NUM_STEPS.value, learning_rate=0.05, optimizer=layers.KerasParams(keras.optimizers.SGD))
        return p


def train(addresses, index, cache):
    """Trains as one of the workers.

    Args:
        addresses: list of 'host:port' of all workers.
        index: which of them this one is.
        cache: the input's field `cache`.

    Yields:
        Dictionary: number of images 'decoded', and the 'loss' of the last step.
    """
    params = SmallNetwork().Model()
    params.Define('input', SmallNetwork().Train().Set(cache=cache), 'The input.')
    params.task.body.num_replicas = _NUM_REPLICAS // len(addresses)
    config = cluster_config.ClusterConfig({'worker': addresses}, 'worker', index)
    params, joined = worker_training.join(params, config, 'CPU')
    data = experiment.build_input(params.input)
    task = experiment.build_task(params, data.input_spec, joined.devices)
    program = joined.program(task, params.train, data.batch_spec)
    program.state_restored()
    with _counting() as counts:
        iterator = program.iterate(functools.partial(data.training_dataset, 0))
        result = program.run(iterator, _NUM_STEPS.value)
        joined.leave()
        yield {'decoded': int(sum(counts)), 'loss': float(result.metrics['loss'][-1])}


@contextlib.contextmanager
def _counting():
    """Notes the number of images of every call that decodes some."""
    counts, from_encoded = [], image_pixels.PixelReader.from_encoded

    def count(self, images, *others):
        with tf.control_dependencies([tf.numpy_function(counts.append, [tf.size(images)], [])]):
            return from_encoded(self, tf.identity(images), *others)

    image_pixels.PixelReader.from_encoded = count
    try:
        yield counts
    finally:
        image_pixels.PixelReader.from_encoded = from_encoded


def _row(cache, num_workers):
    addresses = cluster_config.free_addresses(num_workers)
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(common.Process(train, addresses, index, cache)) for index in range(num_workers)]
        for worker in workers:
            worker.ask()
        answers = [worker.answer() for worker in workers]
    decoded = ', '.join(f'{answer["decoded"] / _NUM_STEPS.value:g}' for answer in answers)
    return [cache, num_workers, decoded, f'{answers[0]["loss"]:.8f}']


def main(unused_argv):
    rows = [_row(cache, num_workers) for cache in _CACHES.value for num_workers in (1, _NUM_REPLICAS)]
    common.report(
        common.markdown_table(_HEADER, rows),
        f'Batches of {_BATCH_SIZE.value}, {_NUM_STEPS.value} steps, {_NUM_REPLICAS} replicas in all.')


if __name__ == '__main__':
    app.run(main)
