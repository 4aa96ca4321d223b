"""Files that a training run leaves: checkpoints, its log directory, curves and measured times."""

import os

import keras
import numpy as np
import tensorflow as tf

from benchmarks.hostile.readers import Reader, labelled, put, special_files, texts
from lingpipe.partition import layer_profile
from lingpipe.tools.report import curves
from lingpipe.training import checkpoint_contents, checkpointing, checkpoints, errors, logdir, progress


def _write_checkpoints(folder):
    state = checkpoint_contents.nested(_variables())
    checkpoints.begin_list(folder)
    for step in (1, 2):
        checkpoints.add(tf.train.Checkpoint(**state).write(os.path.join(folder, f'ckpt-{step}')))


def _variables():
    return {'global_step': tf.Variable(1), 'model/dense/kernel': tf.Variable(tf.ones([3, 4]))}


def _read_checkpoints(folder):
    def read(path):
        shapes = checkpoint_contents.stored_shapes(path)
        pairs = [(name, variable) for name, variable in _variables().items()
                 if shapes.get(name) == list(variable.shape)]
        checkpoint_contents.read_variables(path, pairs)

    checkpoints.read_newest(folder, read)
    checkpoints.leave_out(folder, [os.path.join(folder, 'ckpt-1')])


def _checkpoint_attacks(folder, target):
    def links_elsewhere():
        os.remove(os.path.join(folder, 'checkpoint'))
        os.symlink(target, os.path.join(folder, 'checkpoint'))

    def many_names():
        lines = ''.join(f'all_model_checkpoint_paths: "ckpt-{n}"\n' for n in range(50_000))
        put(folder, 'checkpoint', f'model_checkpoint_path: "ckpt-2"\n{lines}')

    return {
        'a list of many': many_names, 'a list elsewhere': links_elsewhere,
        'names elsewhere': lambda: put(folder, 'checkpoint', 'model_checkpoint_path: "../../outside/precious"'),
        'a name without a step': lambda: put(folder, 'checkpoint', 'model_checkpoint_path: "ckpt-"'),
        'a name of a digit': lambda: put(folder, 'checkpoint', 'model_checkpoint_path: "ckpt-٣"'),
        **labelled('index', special_files('ckpt-2.index')(folder, target)),
        **labelled('data', special_files('ckpt-2.data-00000-of-00001')(folder, target)),
        **labelled('list', special_files('checkpoint')(folder, target))}


def _write_logdir(folder):
    run = logdir.LogDir(folder)
    run.create()
    tf.io.gfile.makedirs(run.best)
    run.write_best(3, 'accuracy', .5)
    run.write_left_out(['worker:1'], 4)
    run.write_control('a : 1', 'analysis')
    with run.lock():
        pass
    _write_checkpoints(run.train)


def _read_logdir(folder):
    run = logdir.LogDir(folder)
    run.create()
    with run.lock():
        run.read_best('accuracy')
        run.read_params()
        run.read_left_out()
        run.write_best(4, 'accuracy', .6)
        run.write_control('a : 2', 'analysis')
        checkpointing.Checkpointer(run.train, _Program()).save()


class _Program:
    """As much of a `TrainProgram` as a checkpoint holds."""

    def __init__(self):
        self.global_step = tf.Variable(3, dtype=tf.int64)
        self.input_position = tf.Variable([0, 0, 0], dtype=tf.int64)
        self.named_variables = {'dense/kernel': keras.Variable(np.ones([3, 4]))}
        self.optimizer, self.average = keras.optimizers.SGD(), None


def _logdir_attacks(folder, target):
    outside = os.path.dirname(target)

    def link(name, to):
        def change():
            path = os.path.join(folder, name)
            if os.path.isdir(path):
                os.rename(path, f'{path}.old')
            elif os.path.exists(path):
                os.remove(path)
            os.symlink(to, path)
        return change

    precious = os.path.join(outside, 'precious')
    return {
        **{f'{name} is a link': link(name, precious) for name in (
            'control/lock', 'control/params.txt', 'control/params.txt.new', 'control/model_analysis.txt.new',
            'best/best.json', 'best/best.json.new', 'train/checkpoint', 'train/ckpt-3.index',
            'train/ckpt-3.data-00000-of-00001')},
        **{f'{name} is a link to a folder': link(name, outside) for name in (
            'train', 'best', 'control', 'train/ckpt-7_temp', 'train/ckpt-3_temp')},
        **{f'{name} is a link to nothing': link(name, target) for name in (
            'control/lock', 'control/params.txt.new', 'best/best.json.new', 'train/checkpoint')},
        **labelled('best.json', texts(
            'best/best.json', '{"value": "os.system"}', '{"value": NaN}', '[]', '{}', '{"value": 1' + '0' * 400 + '}')(
                folder, target)),
        **labelled('left_out.json', texts(
            'control/left_out.json', '{"left_out": 3, "num_devices": 1}', '{"left_out": [], "num_devices": "a"}', '[]')(
                folder, target)),
        **labelled('lock', special_files('control/lock')(folder, target))}


def _write_curves(folder):
    """Writes curves, to a file whose name is known."""
    curve = progress.SummaryWriter(folder)
    for step in range(3):
        curve.scalars(step, {'loss': step / 3})
    curve.text('sample', 'a text', 3)
    curve.flush()
    written, = (name for name in os.listdir(folder) if '.tfevents.' in name)
    os.rename(os.path.join(folder, written), os.path.join(folder, 'events.out.tfevents.1.here'))


def _write_times(folder):
    key = layer_profile.Key('layer', 'inputs', 'CPU', 'float32', '2.21')
    layer_profile.write_times(folder, {key: (.1, .2, .3)})


_TIMES = (
    '[{"key": {"layer": "a", "inputs": "b", "device": "c", "dtype_policy": "d", "tensorflow": "e"}, "seconds": %s}]')
_TRAINING_ERRORS = (errors.TrainingError, errors.DamagedCheckpointError)
READERS = {
    'layer times': Reader(_write_times, layer_profile.read_times, texts(
        'layer_times.json', *(_TIMES % seconds for seconds in (
            '[1e999, 1, 1]', '[' + '9' * 400 + ', 1, 1]', '[' + '9' * 5000 + ', 1, 1]', '"os.system"', '[[1], 1, 1]')),
        '[{"key": {"__class__": "os.system"}, "seconds": [1, 1, 1]}]')),
    'checkpoints': Reader(_write_checkpoints, _read_checkpoints, _checkpoint_attacks, _TRAINING_ERRORS),
    'log directory': Reader(_write_logdir, _read_logdir, _logdir_attacks, _TRAINING_ERRORS),
    'curves': Reader(_write_curves, curves.read, special_files('events.out.tfevents.1.here'), _TRAINING_ERRORS)}
