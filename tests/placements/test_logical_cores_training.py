"""What stands around the training step on logical cores: the loop of steps, input, evaluation and checkpoints."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from lingpipe.training import checkpointing
from lingpipe.training.evaluation import Evaluator
from tests import virtual_tpu
from tests.tiny_tasks import convolution_task


@pytest.fixture(scope='module')
def trained():
    """Four replicas of two cores, a program on them and a batch for all."""
    cores = virtual_tpu.make_cores(2)
    keras.utils.set_random_seed(0)
    p, batch = convolution_task()
    p.body.Set(num_partitions=2, num_micro_batches=1, devices=cores.devices)
    return cores, virtual_tpu.core_program(p, cores, batch[0]), batch


def cores_in(nodes):
    return {node.device for node in nodes if '_tpu_replicate' in node.attr and node.device}


def test_a_call_holds_the_loop_of_steps_with_the_program_inside(trained):
    cores, program, batch = trained
    iterator = program.iterate(lambda share: tf.data.Dataset.from_tensors(batch).repeat())
    graph = program._function.get_concrete_function(iterator, tf.constant(2, tf.int64)).graph
    bodies = [function for function in graph.as_graph_def().library.function
              if any(node.op == 'TPUReplicateMetadata' for node in function.node_def)]
    assert len(bodies) == 1 and 'while_body' in bodies[0].signature.name
    assert cores_in(bodies[0].node_def) == set(cores.devices)


def test_each_replica_gets_its_rows_in_one_static_shape(trained):
    cores, program, batch = trained
    iterator = program.iterate(lambda share: tf.data.Dataset.from_tensors(batch).repeat())
    images, *_ = iterator.element_spec
    assert [spec.shape for spec in images._component_specs] == [[2, 16, 16, 1]] * cores.count
    images, *_ = next(iterator)
    np.testing.assert_array_equal(tf.concat(cores.strategy.experimental_local_results(images), 0), batch[0])


def test_evaluation_runs_on_the_cores(trained):
    cores, program, batch = trained
    evaluation = Evaluator(program._task, program.read, cores)
    graph = evaluation._function.get_concrete_function(batch, False).graph
    assert cores_in(graph.as_graph_def().node) == set(cores.devices)


def test_an_example_that_every_replica_evaluates_counts_once(trained, monkeypatch):
    """The program is a plain sum over the replicas, since there is no TPU that would run it."""
    cores, *_ = trained
    monkeypatch.setattr(cores, 'run', lambda function, arguments: tf.nest.map_structure(
        lambda value: sum([value] * cores.count), function(*arguments)))
    sums = cores.evaluate(lambda batch: {'loss': (2.0 * batch, batch)}, tf.constant(3.0))
    assert [float(each) for each in sums['loss']] == [6.0, 3.0]


def test_a_checkpoint_restores_every_replica(trained, tmp_path):
    _, program, _ = trained
    checkpointer = checkpointing.Checkpointer(str(tmp_path / 'train'), program)
    path = checkpointer.save()
    weights = [variable.value for variable in program._task.body.trainable_variables]
    before = [weight.values[0].numpy() for weight in weights]
    for weight in weights:
        weight.assign(weight.values[0] + 1.0)
    checkpointer.restore(path)
    for weight, value in zip(weights, before):
        for copy in weight.values:
            np.testing.assert_array_equal(copy.numpy(), value)
