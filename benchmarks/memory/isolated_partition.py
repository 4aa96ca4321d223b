"""One partition of a pipeline alone in a process, doing what its device would do, so that its memory is measured."""

import keras
import tensorflow as tf

from benchmarks.support import common, models
from lingpipe import schedules
from lingpipe.devices import device_kinds
from lingpipe.layers import keras_params
from lingpipe.partition import layer_analysis
from lingpipe.stages import graph_pieces


class Source(keras.layers.Layer):
    """Makes tensors of given shapes out of a scalar an example.

    Args:
        specs: nest of `tf.TensorSpec` of the outputs.
        **kwargs: those of every layer.
    """

    def __init__(self, specs, **kwargs):
        super().__init__(**kwargs)
        self._specs = specs

    def build(self, input_shape):
        self.built = True

    def call(self, inputs):
        def make(spec):
            values = tf.reshape(inputs, [-1] + [1] * (len(spec.shape) - 1))
            return tf.cast(
                tf.broadcast_to(values, [inputs.shape[0] or tf.shape(inputs)[0], *spec.shape[1:]]), spec.dtype)

        return tf.nest.map_structure(make, self._specs)


def peak(name, num_partitions, num_micro_batches, recompute, index, ends):
    """Measure the second step of a partition; the arguments are those of `alone`.

    Yields:
        MiB of TensorFlow's allocator, weights included; None where it does not count.
    """
    problem, pipe = alone(name, num_partitions, num_micro_batches, recompute, index, ends)
    step = models.pipeline_step(problem, pipe)
    step(problem.x, problem.y_true).numpy()
    yield common.peak_mib(lambda: step(problem.x, problem.y_true).numpy())


def alone(name, num_partitions, num_micro_batches, recompute, index, ends):
    """Build a partition without the others.

    Args:
        name: name of the schedule.
        num_partitions: K.
        num_micro_batches: M.
        recompute: 'none', 'stage' or 'layer'.
        index: index of the partition.
        ends: list of the end indices of all partitions.

    Returns:
        Pair of a `models.Problem` and the `GPipeLayer` that does its device's actions.
    """
    device_kinds.use_virtual_devices(1)
    problem = models.problem()
    part = problem.layers[([0, *ends])[index]:ends[index]]
    actions = schedules.make_schedule(name, num_partitions, num_micro_batches).device_actions[index]
    if index:
        before = layer_analysis.analyse_layers(
            layer_analysis.named_layer_params(problem.layers[:ends[index - 1]]), models.input_specs(problem))
        source = keras_params.KerasParams(Source, specs=before[-1].outputs)
        problem = problem._replace(layers=[source, *part], x=tf.ones([problem.x.shape[0], 1]))
        order, cut = _with_source(actions), {'num_virtual_stages': 2, 'partition_by': [1, 1 + len(part)]}
    else:
        problem, order, cut = problem._replace(layers=part), [str(_of_stage(action, 0)) for action in actions], {}
    if index < num_partitions - 1:
        problem = problem._replace(loss_fn=_sum_of_outputs)
    return problem, models.build_pipe(
        problem, num_partitions=1, num_micro_batches=num_micro_batches, schedule=[order], recompute=recompute, **cut)


def steps(name, num_partitions, num_micro_batches, recompute):
    """Yield the seconds of one step of the whole pipeline after another.

    The operations of a call follow one another. TensorFlow would otherwise lend a stage the core of a device that
    waits.
    """
    device_kinds.use_virtual_devices(num_partitions)
    graph_pieces._graph_def = _in_sequence(graph_pieces._graph_def)
    problem = models.problem()
    pipe = models.build_pipe(
        problem, num_partitions=num_partitions, num_micro_batches=num_micro_batches, schedule=name, recompute=recompute)
    step = models.pipeline_step(problem, pipe)
    yield from models.step_seconds(step, problem)


def _in_sequence(make_graph_def):
    """Return the same function, in whose results each operation waits for the one before it."""
    def make(graph, operations):
        graph_def = make_graph_def(graph, operations)
        for before, node in zip(graph_def.node, graph_def.node[1:]):
            node.input.append(f'^{before.name}')
        return graph_def

    return make


def _with_source(actions):
    """The source's forward action comes right before, its backward action right after, that of the partition."""
    order = []
    for action in actions:
        own, source = (str(_of_stage(action, stage)) for stage in (1, 0))
        order += [source, own] if action.kind == schedules.FORWARD else [own, source]
    return order


def _of_stage(action, stage):
    return action._replace(stage=stage)


def _sum_of_outputs(y_true, outputs):
    """A small share of the sum: a mean would put a constant as large as the outputs into every call of the
    partition."""
    return 1e-6 * tf.add_n([tf.reduce_sum(tf.cast(tensor, tf.float32), range(1, tensor.shape.rank))
                            for tensor in tf.nest.flatten(outputs) if tensor.dtype.is_floating])
