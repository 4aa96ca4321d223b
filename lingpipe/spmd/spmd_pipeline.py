"""Pipeline of identical stages, as one program that every core runs.

The program loops over V M + K - 1 ticks, for K cores, M micro-batches and V stages per core. In each tick, every core
runs a stage and sends the output to the next core, as in a shift register (GSPMD, arXiv 2105.04663, section 3.3)::

    tick        0     1     2     3     4     5     6     7          K=3, M=3, V=2; in round 0 core k has stage k,
    core 0      m0    m1    m2    m0'   m1'   m2'   .     .          in round 1 (m0', m1', ...), stage K + k
    core 1      .     m0    m1    m2    m0'   m1'   m2'   .
    core 2      .     .     m0    m1    m2    m0'   m1'   m2'

A dot is a core that computes unused values. The backward pass runs the loop in reverse, and recomputes each tick.
Layers outside the stages, such as embedding and softmax, run on all cores. The large weights of these layers are
sharded over the cores.
"""

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from lingpipe.partition import layer_analysis
from lingpipe.pipeline import gpipe_layer
from lingpipe.spmd import stage_map
from lingpipe.spmd.stage_map import SpmdValues, StageMap, recomputing
from lingpipe.stages import random_seeds, stage_layers

_LEAST_SIZE_TO_CUT = 2**14


class SpmdPipeline:
    """The forward pass and loss of a stack of layers. Use this class only in a function that XLA compiles.

    Args:
        run: (start, end) of the equal layers, from `stage_map.longest_run`. All stages get equally many layers.
        num_cores, num_micro_batches, num_rounds: K, M and V.
        is_partitioned: True: the program is for K cores. False: the program is for one device.

    Attributes:
        variables: `SpmdValues` with Keras variables: K lists of V variables instead of each tensor `[K, V, ...]`.
        num_left_out: number of equal layers that are left over and run before the stages.
        staged: slice of the stack with the layers of all stages.
        ends: end index of each stage. The first and the last stage include the layers outside `staged`.
    """

    def __init__(self, stack: list[keras.layers.Layer], run: tuple[int, int], num_cores: int, num_micro_batches: int,
                 recompute: str = 'stage', is_partitioned: bool = True, num_rounds: int = 1) -> None:
        stage_map.validate_numbers(run, num_cores, num_micro_batches, num_rounds, recompute)
        self._map = StageMap(num_cores, is_partitioned)
        self.num_cores, self.num_rounds = num_cores, num_rounds
        self._num_micro_batches, self._recompute = num_micro_batches, recompute
        generators = random_seeds.generators_of(stack)
        self._num_seeds = len(generators)

        def part(layers):
            return stage_layers.StageLayers(
                0, [stage_layers.LayerSegment(layer, position) for position, layer in enumerate(layers)], generators)

        num_stages = num_cores * num_rounds
        size, self.num_left_out = divmod(run[1] - run[0], num_stages)
        first = run[1] - size * num_stages
        self.staged = slice(first, run[1])
        self.ends = [*range(first + size, run[1], size), len(stack)]
        self._before, self._after = part(stack[:first]), part(stack[run[1]:])
        self._stages = [part(stack[start:start + size]) for start in range(first, run[1], size)]
        self._layers = [part([layer]) for layer in stack[first:first + size]]
        outer = [self._before, self._after]
        stage_map.validate_stages(self._stages, outer)
        self.variables = SpmdValues(
            self._rows([each.trainable_variables for each in self._stages]),
            _without_doubles([each.trainable_variables for each in outer]),
            self._rows([each.variables().state for each in self._stages]),
            _without_doubles([each.variables().state for each in outer]))
        parts = [self._before, *self._stages, self._after]
        self.trainable_variables = _without_doubles([each.trainable_variables for each in parts])

    def _rows(self, variables):
        """For each variable of stage 0, return the matching variables of all stages, as K lists of V variables."""
        return [[list(row[core::self.num_cores]) for core in range(self.num_cores)] for row in zip(*variables)]

    def place_stages(self, value: tf.Tensor) -> tf.Tensor:
        """Shard a tensor `[K, V, ...]` of the stages' variables or gradients over the K cores."""
        return self._map.shard(value)

    def place_outer(self, value: tf.Tensor) -> tf.Tensor:
        """Shard the value or gradient of a variable outside the stages, if `outer_dimension` is not None."""
        dimension = self.outer_dimension(value.shape)
        return value if dimension is None else self._map.shard(value, dimension)

    def outer_dimension(self, shape: Any) -> int | None:
        """Return the dimension in which to shard a variable outside the stages. None: the variable stays whole."""
        shape = tf.TensorShape(shape)
        sizes = [size if size % self.num_cores == 0 else 0 for size in shape]
        if self.num_cores == 1 or shape.num_elements() < _LEAST_SIZE_TO_CUT or not any(sizes):
            return None
        return sizes.index(max(sizes))  # the longest that K divides

    def metrics(self, loss: Callable, values: SpmdValues, x: Any, targets: Any,
                seed_and_step: tf.Tensor) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
        """Run a batch through the pipeline, as in training. Return {name: (sum, weight)} over the batch.

        Args:
            loss: function `(targets, outputs) -> {name: (sum, weight)}`.
            x: nest of tensors `[batch, ...]` of static shapes. M must divide the batch size.
            seed_and_step: int64 tensor `[2]` that determines the random numbers, as in a `GPipeLayer`.
        """
        values = values.map(self.place_stages, self.place_outer)
        variables = [*self.variables.outer, *self.variables.outer_state]
        outer = dict(zip(map(id, variables), [*values.outer, *values.outer_state]))
        x, targets = (tf.nest.map_structure(self._cut, nest) for nest in (x, targets))
        seeds = self._seeds(seed_and_step)
        entering = self._outer_pass(self._before, outer, x, (), seeds, seed_and_step[1], None)
        leaving = self._shift_register(values, entering, seeds, seed_and_step[1])
        sums = self._outer_pass(self._after, outer, leaving, targets, seeds, seed_and_step[1], loss)
        return tf.nest.map_structure(lambda parts: tf.reduce_sum(parts, axis=0), sums)

    def _cut(self, tensor):
        rows, count = tensor.shape[0], self._num_micro_batches
        if rows is None or rows % count:
            raise ValueError(
                f'A batch has {rows} rows, but one program for all cores needs micro-batches of one size, so that '
                f'num_micro_batches={count} must divide the batch size. Change one of them.')
        return tf.reshape(tensor, [count, rows // count, *tensor.shape[1:]])

    def _seeds(self, seed_and_step):
        """Return the seeds of all generators for all micro-batches, int32 `[M, generators, 2]`."""
        return tf.map_fn(lambda micro_batch: random_seeds.draw_seeds(seed_and_step, micro_batch, self._num_seeds),
                         tf.range(self._num_micro_batches, dtype=tf.int64), fn_output_signature=tf.int32)

    def _outer_pass(self, part, outer, inputs, targets, seeds, step, loss):
        """Run layers outside the stages, and the loss if one is given."""
        if not part.layers and loss is None:
            return inputs
        variables, structure = part.variables().map(lambda variable: outer[id(variable)]), []

        def run(tensors):
            own, nest, wanted, own_seeds = tf.nest.pack_sequence_as((variables, inputs, targets, seeds), tensors)
            outputs = stage_map.call(part, nest, own, step, own_seeds)
            structure[:] = [outputs if loss is None else loss(wanted, outputs)]
            return tf.nest.flatten(structure[0])

        rows = tf.nest.flatten((inputs, targets, _of_generators(seeds, part)))
        results = _one_by_one(lambda parts: recomputing(run)([*tf.nest.flatten(variables), *parts]), rows)
        return tf.nest.pack_sequence_as(structure[0], results)

    def _shift_register(self, values, entering, seeds, step):
        """Run the identical stages on `entering`, a nest of tensors `[M, micro_batch, ...]`."""
        count, cores = self._num_micro_batches, tf.range(self.num_cores)
        num_items, last = count * self.num_rounds, self.num_cores - 1
        rows = list(map(self._map.replicate, tf.nest.flatten(entering)))
        tick = recomputing(functools.partial(self._stage, entering), self._map)
        seeds = self._seeds_of_items(seeds)
        steps = tf.fill([self.num_cores], step)

        weights_and_state = [*values.stages, *values.stage_state]

        def body(index, registers, queues, leaving):
            arrived = [self._map.shard(tf.roll(register, 1, axis=0)) for register in registers]
            entering = [self._entering(tensor, tf.minimum(index, count - 1)) for tensor in rows]
            begun = [self._begin(index, *each) for each in zip(arrived, entering, queues)]
            items = tf.clip_by_value(index - cores, 0, num_items - 1)
            own_seeds = tf.gather(seeds, items, axis=1, batch_dims=1)
            registers = tick(
                [*weights_and_state, *[register for register, _ in begun], steps, items // count, own_seeds])
            place = tf.maximum(index - last - (num_items - count), 0)  # what leaves too early is overwritten
            leaving = [array.write(place, self._leaving(register)) for array, register in zip(leaving, registers)]
            return index + 1, registers, [queue for _, queue in begun], leaving

        idle = [self._map.shard(tf.repeat(tensor[:1], self.num_cores, axis=0)) for tensor in rows]
        queues = [self._empty_queue(tensor) for tensor in idle]
        arrays = [tf.TensorArray(tensor.dtype, count, element_shape=tensor.shape[1:]) for tensor in rows]
        num_ticks = num_items + last
        *_, leaving = tf.while_loop(
            lambda index, *_: index < num_ticks, body, (0, idle, queues, arrays), maximum_iterations=num_ticks)
        leaving = [self._map.replicate(array.stack()) for array in leaving]
        return tf.nest.pack_sequence_as(entering, leaving)

    def _seeds_of_items(self, seeds):
        """Return each core's seeds as `[K, V M, ...]`: M for the core's first stage, then M for its second, ..."""
        parts = [_of_generators(seeds, each) for each in self._stages]
        return tf.stack([tf.concat(parts[core::self.num_cores], 0) for core in range(self.num_cores)])

    def _empty_queue(self, tensor):
        """Return the queues of all cores before the first tick."""
        length = self._num_micro_batches - self.num_cores if self.num_rounds > 1 else 0
        return self._map.shard(tf.repeat(tensor[:, tf.newaxis], length, axis=1))  # only core 0 uses its queue

    def _begin(self, index, arrived, entering, queue):
        """Return the cores' inputs for tick `index`, and the new queues."""
        is_first = tf.reshape(tf.range(self.num_cores) == 0, [-1] + [1] * entering.shape.rank)
        if self.num_rounds == 1:
            return self._map.shard(tf.where(is_first, entering, arrived)), queue
        returning = arrived
        if queue.shape[1]:  # outputs of the last core wait until all micro-batches have entered
            queue = tf.concat([queue, arrived[:, tf.newaxis]], axis=1)
            returning, queue = queue[:, 0], self._map.shard(queue[:, 1:])
        first = tf.where(index < self._num_micro_batches, entering, returning)  # new micro-batches, then the queue
        return self._map.shard(tf.where(is_first, first, arrived)), queue

    def _entering(self, rows, index):
        """Return `rows[index]` on every core."""
        return self._map.replicate(self._map.replicate(rows)[index])  # else ticks would reshard the gradient of rows

    def _leaving(self, register):
        """Copy the last core's output to every core."""
        is_last = tf.reshape(tf.range(self.num_cores) == self.num_cores - 1, [-1] + [1] * (register.shape.rank - 1))
        return self._map.replicate(tf.reduce_sum(tf.where(is_last, register, tf.zeros([], register.dtype)), axis=0))

    def _stage(self, structure, tensors):
        """Run one stage with the weights and seeds in `tensors`."""
        *tensors, step, round_, seeds = tensors
        counts = [len(self.variables.stages), len(self.variables.stage_state)]
        passing = tensors[sum(counts):]
        values = [_of_round(each, round_) for each in tensors[:sum(counts)]]
        weights, state = values[:counts[0]], values[counts[0]:]
        for part in self._layers:  # all stages use the layers of stage 0
            own = part.variables()
            own_weights, weights = weights[:len(own.weights)], weights[len(own.weights):]
            own_state, state = state[:len(own.state)], state[len(own.state):]
            own_seeds, seeds = seeds[:len(part.seed_positions)], seeds[len(part.seed_positions):]
            layer = functools.partial(self._layer, part, structure)
            passing = (recomputing(layer) if self._recompute == 'layer' else layer)(
                [*own_weights, *own_state, *passing, step, own_seeds])
        return passing

    def _layer(self, part, structure, tensors):
        values, inputs, step, seeds = tf.nest.pack_sequence_as((part.variables(), structure, 0, 0), tensors)
        return tf.nest.flatten(stage_map.call(part, inputs, values, step, seeds))


def of_layer(pipe: gpipe_layer.GPipeLayer, input_specs: Any, is_partitioned: bool) -> SpmdPipeline:
    """Make an `SpmdPipeline` from the layers and params of `pipe`.

    Args:
        input_specs: nest of `tf.TensorSpec` `[batch, ...]` of the pipeline's input.

    Raises:
        ValueError: the pipeline was made from a Keras model, or has layers that one program for all cores cannot run.
    """
    if pipe.model is not None:
        raise ValueError("tpu_route='spmd' takes a list of layers that are alike, but model is set. Set "
                         "tpu_route='stage_programs'.")
    p, layer_params = pipe.params, layer_analysis.named_layer_params(pipe.params.layers, pipe.params.dtype_policy)
    run = stage_map.longest_run(layer_params, [input_specs, *[each.outputs for each in pipe.analyses]])
    return SpmdPipeline(pipe.stack, run, p.num_partitions, p.num_micro_batches, p.recompute, is_partitioned,
                        p.num_virtual_stages)


@tf.custom_gradient
def _of_round(weights, round_):
    """Return the weights of one round, from a tensor `[V, ...]` of all rounds."""
    def gradient(upstream):  # by tf.where, because a TPU would compute a scatter one element after the other
        is_chosen = tf.reshape(tf.range(weights.shape[0]) == round_, [-1] + [1] * upstream.shape.rank)
        return tf.where(is_chosen, upstream, tf.zeros([], upstream.dtype)), None

    return tf.gather(weights, round_) if weights.shape[0] > 1 else weights[0], gradient


def _without_doubles(lists):
    return list({id(variable): variable for each in lists for variable in each}.values())


def _of_generators(seeds, part):
    return tf.gather(seeds, tf.constant(part.seed_positions, tf.int32), axis=1)


def _one_by_one(function, rows):
    """Call a function on each of the M entries of tensors `[M, ...]`."""
    count = rows[0].shape[0]
    concrete = tf.function(function, autograph=False).get_concrete_function(
        [tf.TensorSpec(row.shape[1:], row.dtype) for row in rows])
    arrays = [tf.TensorArray(output.dtype, count, element_shape=output.shape) for output in concrete.structured_outputs]

    def body(index, arrays):
        results = function([row[index] for row in rows])
        return index + 1, [array.write(index, result) for array, result in zip(arrays, results)]

    _, arrays = tf.while_loop(lambda index, _: index < count, body, (0, arrays), maximum_iterations=count)
    return [array.stack() for array in arrays]
