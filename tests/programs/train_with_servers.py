"""Trainings in a small cluster of servers on loopback: the tests start it with the TF_CONFIG of a server, or with that of the chief,
a folder and the name of one of the functions at the end."""

import contextlib
import io
import json
import pathlib
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

import keras
import tensorflow as tf
from absl import logging
from programs import tiny_digits

from lingpipe.cluster import cluster_config, server
from lingpipe.devices import device_kinds
from lingpipe.input import image_input, row_order
from lingpipe.layers import keras_params
from lingpipe.models import keras_metrics
from lingpipe.placements import parameter_servers
from lingpipe.training import errors, experiment, trainer
from params import linear_regression


def train(chosen, logdir, servers, **overrides):
    """Train, with servers or on this machine alone where there are None, and return what was printed.

    On a busy machine gRPC may cut off a request, which ends training in words; as these say, it is started again then.
    """
    text = train_once(chosen, logdir, servers, **overrides)
    return train_once(chosen, logdir, servers, **overrides) if 'Unable to parse request' in text else text


def train_once(chosen, logdir, servers, **overrides):
    """Do what `train` does, once."""
    params = chosen.Model()
    devices = [f'CPU:{index}' for index in range(params.task.body.num_partitions)]
    params.Define('input', chosen.Train(), '')
    params.train.Set(**overrides)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            if servers:
                servers.devices = devices
                parameter_servers.train(params, {'Test': chosen.Test()}, logdir, servers)
            else:
                trainer.Trainer(params, {'Test': chosen.Test()}, logdir, experiment.Placement(devices)).run()
        except (errors.TrainingError, ValueError) as error:
            print(f'Error {errors.exit_code(error)}: {error}')
    return printed.getvalue()


class WeightedDigits(image_input.ImageInput):
    """Weights by which the shares of a batch count differently."""

    def training_dataset(self, position=0, share=row_order.WHOLE):
        return super().training_dataset(position, share).map(
            lambda images, labels, weights: (images, labels, weights * tf.cast(labels % 3, tf.float32)))


class Digits(tiny_digits.TinyDigits):
    """Batch norm, clipping, regularisers, moving averages, momentum, a schedule and a Keras metric, but no
    dropout."""

    INPUT = WeightedDigits
    NUM_MICRO_BATCHES = 2

    def Task(self):
        p = super().Task()
        p.metrics = [keras_params.KerasParams(
            keras_metrics.OfClasses, metric=keras_params.KerasParams(keras.metrics.AUC, num_thresholds=20))]
        p.train.summary_interval_steps = 1
        p.body.num_micro_batches = self.NUM_MICRO_BATCHES
        p.body.layers = [layer for layer in p.body.layers if layer.cls.__name__ != 'Dropout']
        return p


class TwiceAsManyMicroBatches(Digits):
    """What one machine must do for the statistics of two shares."""

    NUM_MICRO_BATCHES = 4


class DigitsWithAddedLoss(Digits):
    """A layer adds a loss, of which shares of a batch do not make the whole."""

    def Task(self):
        p = super().Task()
        p.body.layers.append(keras_params.KerasParams(keras.layers.ActivityRegularization, l2=0.1))
        return p


def find_true_weights(servers, folder):
    texts = {}
    for servers.update in ('async', 'sync'):
        texts[servers.update] = train(
            linear_regression.EightWeights(), f'{folder}/{servers.update}', servers, max_steps=100)
    return texts


def digits(servers, folder):
    """Steps in sync, of which the third resumes from a checkpoint; then more on this machine alone; the same here only;
    more, async."""
    servers.update = 'sync'
    texts = [train(Digits(), f'{folder}/sync', servers, max_steps=steps) for steps in (2, 3)]
    shutil.copytree(f'{folder}/sync', f'{folder}/sync_then_alone')
    (pathlib.Path(folder, 'sync_then_alone/train/checkpoint')).write_text('model_checkpoint_path: "ckpt-3"')
    texts += [train(TwiceAsManyMicroBatches(), f'{folder}/{name}', None, max_steps=5) for name in (
        'sync_then_alone', 'alone')]
    texts.append(train(DigitsWithAddedLoss(), f'{folder}/refused', servers, max_steps=1))
    servers.update = 'async'
    texts.append(train(Digits(), f'{folder}/sync', servers, max_steps=9))
    return texts


def faults(servers, folder):
    """Tell in which folder it trains: the tests kill a worker in the first, which comes back, and a server in the
    second."""
    servers.update, texts = 'async', {}
    for name in ('worker', 'ps'):
        print(name, flush=True)
        texts[name] = train(
            linear_regression.EightWeights(), f'{folder}/{name}', servers, max_steps=800, save_interval_seconds=0.5)
    return texts


def main():
    config = cluster_config.read()
    if not config.is_chief:
        return server.serve(config, num_cpu_devices=2)
    device_kinds.use_virtual_devices(2)
    servers = parameter_servers.ParameterServers(config, timeout_seconds=60)
    logging.set_verbosity(logging.FATAL)
    folder, trial = sys.argv[1:]
    results = globals()[trial](servers, folder)
    pathlib.Path(folder, 'results.json').write_text(json.dumps(results))


if __name__ == '__main__':
    main()
