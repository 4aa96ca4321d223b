"""A step on replicas of partitioned cores: run on two replicas of two CPU devices, and compiled for as many cores of a
TPU."""


import keras
import numpy as np
import tensorflow as tf

from lingpipe.layers.keras_params import KerasParams
from lingpipe.pipeline import gpipe_layer
from lingpipe.spmd import spmd_pipeline, spmd_step
from lingpipe.stages import losses
from lingpipe.tools.tpu_compile import stable_hlo
from tests import compiled_replicas, needs, spmd_values, xla_replicas

pytestmark = needs.tpu_compiler

NUM_REPLICAS, NUM_STAGES, NUM_MICRO_BATCHES, BATCH_SIZE, UNITS = 2, 2, 2, 8, 128
SPEC = tf.TensorSpec([BATCH_SIZE // NUM_REPLICAS, UNITS], tf.float32)


def make_pipe(**fields):
    dense = KerasParams(keras.layers.Dense, units=UNITS, activation='tanh')
    layers = [KerasParams(keras.layers.Dense, units=UNITS, activation='relu'), dense, dense]
    keras.utils.set_random_seed(0)
    pipe = gpipe_layer.GPipeLayer.Params().Set(name='body', layers=layers, random_seed=0, **fields).Instantiate()
    pipe.build_from_specs(tf.TensorSpec([BATCH_SIZE, UNITS]))
    return pipe


def make_step(pipe):
    pipeline = spmd_pipeline.of_layer(pipe, SPEC, is_partitioned=True)
    metrics = losses.as_metrics(keras.losses.MeanSquaredError())
    return pipeline, spmd_step.SpmdStep(
        pipeline, lambda targets, outputs: metrics(*targets, outputs), keras.optimizers.SGD(0.1, momentum=0.9),
        clip_gradient_norm_to_value=0.01, replicas=xla_replicas.XlaReplicas(NUM_REPLICAS))


def test_replicas_take_the_step_of_one_device_on_all_of_their_rows(tmp_path, assert_close):
    pipe = make_pipe(num_partitions=NUM_STAGES, num_micro_batches=NUM_MICRO_BATCHES, devices=['CPU:0'] * NUM_STAGES)
    pipeline, step = make_step(pipe)
    specs, state = step.state_specs(), spmd_values.initial_state(step, pipeline)
    x, y = np.random.default_rng(0).normal(size=(2, BATCH_SIZE, UNITS)).astype(np.float32)
    rows = [each.reshape(NUM_REPLICAS, -1, UNITS) for each in (x, y)]
    program = stable_hlo.lower(xla_replicas.on_all_cores(step), specs, SPEC, (SPEC,))
    arguments = [*(np.stack([each] * NUM_REPLICAS) for each in tf.nest.flatten(state)), *rows]
    results = compiled_replicas.run(program, arguments, NUM_REPLICAS, NUM_STAGES, tmp_path)
    for result in results:
        np.testing.assert_array_equal(result[0], result[1])
    new, metrics = tf.nest.pack_sequence_as((state, {'loss': 0, 'gradient_norm': 0}), [result[0] for result in results])

    out = pipe.value_and_grad(keras.losses.MeanSquaredError(), x, y)
    gradients, norm = tf.clip_by_global_norm(out.gradients, 0.01)
    expected = {id(variable): variable.numpy() - 0.1 * gradient for variable, gradient in zip(
        pipe.trainable_variables, gradients)}
    assert_close((metrics['loss'], metrics['gradient_norm']), (out.loss, norm))
    found = spmd_values.found_values(pipeline, new.values)
    assert set(found) == set(expected)
    for key, value in found.items():
        assert_close(value, np.asarray(expected[key]))


def test_cores_of_a_tpu_add_up_their_own_slices_over_the_replicas(tmp_path):
    _, step = make_step(make_pipe(num_partitions=NUM_STAGES, num_micro_batches=NUM_MICRO_BATCHES,
                                  devices=['CPU:0'] * NUM_STAGES))
    program = stable_hlo.lower(step, step.state_specs(), SPEC, (SPEC,))
    lines = compiled_replicas.hlo_of_tpu(program, 'v5e:2x2', NUM_REPLICAS, tmp_path).splitlines()
    slices, = (line for line in lines
               if ' all-reduce(' in line and 'channel_id' not in line)  # with one it is within a replica
    assert f'f32[1,1,{UNITS},{UNITS}]' in slices and 'replica_groups={{0,1}}' in slices
    assert not [line for line in lines if ' all-gather(' in line and f'[{NUM_STAGES},1,{UNITS},{UNITS}]' in line]
