"""Training by tpu_route='spmd' from end to end on CPU devices that stand for the cores of one replica."""

import os
import signal

import keras
import numpy as np
import pytest
import tensorflow as tf

from lingpipe import base_model_params, layers
from lingpipe.input import image_input
from lingpipe.models import image_classifier, keras_metrics
from lingpipe.training import progress, train_program, trainer
from lingpipe.training.experiment import Placement
from tests import needs
from tests.curves import curve
from tests.programs import local_spmd_cores

pytestmark = needs.xla_on_cpus


def dense(units):
    return layers.KerasParams(keras.layers.Dense, units=units, activation='tanh')


class NormedDense(keras.layers.Dense):
    """Keeps moving averages beside its weights, which stay as they are."""

    def build(self, input_shape):
        super().build(input_shape)
        self.norm = keras.layers.BatchNormalization(center=False, scale=False, trainable=False)
        self.norm.build(self.compute_output_shape(input_shape))

    def call(self, inputs, training=False):
        return self.norm(super().call(inputs, training=training), training=training)


def make_params(**fields):
    """Return the params of a classifier with two layers that are alike, and before them weights that are cut over the
    cores."""
    class Tiny(base_model_params.SingleTaskModelParams):
        def Task(self):
            alike = layers.KerasParams(NormedDense, units=8, activation='tanh')
            p = image_classifier.ImageClassifier.Params().Set(name='tiny', metrics=[layers.KerasParams(
                keras_metrics.OfClasses, metric=layers.KerasParams(keras.metrics.AUC, num_thresholds=20))])
            flatten = layers.KerasParams(keras.layers.Flatten)
            p.body.Set(num_partitions=2, num_micro_batches=2, layers=[
                flatten, dense(256), dense(8), alike, alike, dense(6), dense(10)])
            p.train.Set(max_steps=6, steps_per_loop=2, summary_interval_steps=2, learning_rate=0.01, clip_gradient_norm_to_value=1.0,
                        save_interval_seconds=0.0, l2_regularizer_weight=0.01, ema_decay=0.9,
                        optimizer=layers.KerasParams(keras.optimizers.AdamW, weight_decay=0.1))
            return p

    params, data = Tiny().Model(), image_input.ImageInput.Params().Set(dataset='digits', image_size=8)
    params.Define('input', data.Copy().Set(split='train', batch_size=32), '')
    params.train.Set(**fields)
    return params, {'Test': data.Copy().Set(split='test', batch_size=150)}


def make_trainer(logdir, placement, **fields):
    return trainer.Trainer(*make_params(**fields), str(logdir), placement)


@pytest.fixture(scope='module')
def plain(tmp_path_factory):
    """Folder and results of a training that no TPU has to do with."""
    logdir = tmp_path_factory.mktemp('plain')
    return logdir, make_trainer(logdir, Placement(['CPU:1', 'CPU:2'])).run()


@pytest.fixture(scope='module')
def resumed(tmp_path_factory):
    """Trainer, folder and results of a training that another one began, and that a signal stopped at step 4."""
    logdir, update = tmp_path_factory.mktemp('resumed'), progress.Progress.update
    make_trainer(logdir, Placement(['CPU:1', 'CPU:2']), max_steps=1).run()

    def signalling_update(self, step, *args):
        update(self, step, *args)
        if step == 4:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.MonkeyPatch.context() as patch:
        local_spmd_cores.compile_steps(patch)
        made = make_trainer(logdir, local_spmd_cores.LocalSpmdCores(2))
        with pytest.MonkeyPatch.context() as for_signal:
            for_signal.setattr(progress.Progress, 'update', signalling_update)
            assert made.run() == {} and made._step == 4
        yield made, logdir, made.run()


def test_training_resumes_from_any_checkpoint_as_elsewhere(plain, resumed, stored, assert_close):
    """Its checkpoints are those of any other training run."""
    _, logdir, results = resumed
    plain_logdir, expected = plain
    assert results['Test'] == pytest.approx(expected['Test'], rel=1e-4)
    checkpoint = stored(logdir / 'train/ckpt-6')
    assert_close(checkpoint, stored(plain_logdir / 'train/ckpt-6'), 1e-4)
    assert {name for name in checkpoint if name.startswith('moving_average/') and 'moving_mean' in name}


def test_keras_metrics_of_a_step_are_those_of_its_whole_batch(plain, resumed):
    _, logdir, _ = resumed
    found, expected = (dict(curve(folder / 'train', 'auc')) for folder in (logdir, plain[0]))
    assert set(expected) >= {4, 6}
    assert [found[step] for step in (4, 6)] == pytest.approx([expected[step] for step in (4, 6)], rel=1e-4)


def test_a_step_that_is_not_finite_ends_the_call_and_leaves_the_state(resumed):
    made, *_ = resumed
    program = made._program
    variables = [variable.value for variable in [*made._task.body.weights, *program.optimizer.variables]]
    before = [variable.numpy() for variable in variables]
    dataset = made._input.training_dataset().map(lambda images, *rest: (images * float('nan'), *rest))
    with pytest.raises(tf.errors.InvalidArgumentError, match=train_program.NON_FINITE):
        program.run(program.iterate(lambda share: dataset), 2)
    program._variables.to_host()
    assert int(program.global_step) == 6
    for variable, value in zip(variables, before):
        np.testing.assert_array_equal(variable.numpy(), value)
