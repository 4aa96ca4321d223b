"""Trainings in a small cluster of servers on loopback: the tests start it with the TF_CONFIG of a server, or with that of the chief,
a folder and the name of one of the functions at the end."""

import contextlib
import functools
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

from lingpipe import base_model_params
from lingpipe.cluster import cluster_config, server
from lingpipe.devices import device_kinds
from lingpipe.input import batch_share, image_input, text_input
from lingpipe.layers import keras_params, transformer
from lingpipe.models import keras_metrics, language_model
from lingpipe.placements import parameter_servers, remote_calls
from lingpipe.training import errors, placement, trainer
from params import linear_regression


def train(experiment, logdir, servers, **overrides):
    """Train, with servers or on this machine alone where there are None, and return what was printed.

    On a busy machine gRPC may cut off a request, which ends training in words; as these say, it is started again then.
    """
    text = train_once(experiment, logdir, servers, **overrides)
    return train_once(experiment, logdir, servers, **overrides) if 'Unable to parse request' in text else text


def train_once(experiment, logdir, servers, **overrides):
    """Do what `train` does, once."""
    params = experiment.Model()
    devices = [f'CPU:{index}' for index in range(params.task.body.num_partitions)]
    params.Define('input', experiment.Train(), '')
    params.train.Set(**overrides)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            if servers:
                servers.devices = devices
                parameter_servers.train(params, {'Test': experiment.Test()}, logdir, servers)
            else:
                trainer.Trainer(params, {'Test': experiment.Test()}, logdir, placement.Placement(devices)).run()
        except (errors.TrainingError, ValueError) as error:
            print(f'Error {errors.exit_code(error)}: {error}')
    return printed.getvalue()


class WeightedDigits(image_input.ImageInput):
    """Weights by which the shares of a batch count differently."""

    def training_dataset(self, position=0, share=batch_share.WHOLE):
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


class Bytes(base_model_params.SingleTaskModelParams):
    """A language model with a table of 256 rows, of which a share of a batch looks up at most 32."""

    NUM_MICRO_BATCHES = 1
    folder = None

    def _input(self, split):
        return text_input.TextInput.Params().Set(split=split, data_dir=self.folder, batch_size=4, sequence_length=16)

    def Train(self):
        return self._input('train')

    def Test(self):
        return self._input('test[:5%]')

    def Task(self):
        p = language_model.LanguageModel.Params().Set(name='bytes')
        p.body.Set(num_micro_batches=self.NUM_MICRO_BATCHES, layers=transformer.transformer_lm_layers(
            num_layers=1, vocab_size=256, model_dim=8, hidden_dim=16, num_heads=2, positions='rotary'))
        p.train.Set(learning_rate=0.1, optimizer=keras_params.KerasParams(keras.optimizers.SGD, momentum=0.9),
                    clip_gradient_norm_to_value=1.0)
        return p


class BytesOfTwoMicroBatches(Bytes):
    """What one machine must do for two shares."""

    NUM_MICRO_BATCHES = 2


def find_true_weights(servers, folder):
    texts = {}
    for name, servers.update, servers.batches_from in (
            ('async', 'async', 'chief'), ('sync', 'sync', 'chief'), ('async_of_workers', 'async', 'workers')):
        texts[name] = train(linear_regression.EightWeights(), f'{folder}/{name}', servers, max_steps=100)
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
    servers.update, servers.batches_from = 'sync', 'workers'
    texts += [train(Digits(), f'{folder}/sync_of_workers', servers, max_steps=steps) for steps in (3, 5)]
    return texts


class RepeatedCalls(remote_calls.RemoteCalls):
    """Calls of which the first runs twice, as one whose answer is lost."""

    is_first = True

    def call(self, arguments):
        if self.is_first:
            self._coordinator.schedule(self._function, args=arguments).fetch()
            self.is_first = False
        super().call(arguments)


def rows(servers, folder):
    """Weights in rows over both servers, and lookups there: three steps in sync, two more on this machine, the same here
    only; async, where a call is repeated."""
    Bytes.folder, parameter_servers._LEAST_BYTES_OF_PART = f'{folder}/data', 64
    servers.update, servers.batches_from = 'sync', 'workers'
    texts = [train(Bytes(), f'{folder}/rows', servers, max_steps=3)]
    texts += [train(BytesOfTwoMicroBatches(), f'{folder}/{name}', None, max_steps=5) for name in ('rows', 'whole')]
    servers.update, servers.calls = 'async', functools.partial(RepeatedCalls, servers._coordinator, limit=4)
    texts.append(train(Bytes(), f'{folder}/async', servers, max_steps=20))
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
