"""Pipeline of identical stages as one program that every core runs: a shift register of micro-batches.

With K cores, M micro-batches and V stages on each core the program is a loop of V M + K - 1 ticks. In each tick every
core works, and its output moves on to the next one (GSPMD, arXiv 2105.04663, section 3.3), from the last to the first
as long as there are stages left. There it waits until all micro-batches have entered::

    tick        0     1     2     3     4     5     6     7          K=3, M=3, V=2; in round 0 core k has stage k,
    core 0      m0    m1    m2    m0'   m1'   m2'   .     .          in round 1, with the dash, stage K + k
    core 1      .     m0    m1    m2    m0'   m1'   m2'   .
    core 2      .     .     m0    m1    m2    m0'   m1'   m2'

Cores without a micro-batch (the dots) compute what nothing reads: the bubble. The gradient runs the loop backwards
and recomputes each tick from the tensors that entered it. Layers before and after the identical ones, such as embedding
and softmax, run for one micro-batch after the other, each on all cores, with large weights cut over these.
"""

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from lingpipe.partition import layer_analysis
from lingpipe.pipeline import gpipe_layer
from lingpipe.spmd import stage_map
from lingpipe.spmd.stage_map import StageMap, recomputing
from lingpipe.stages import graph_pieces, random_seeds, stage_layers

_LEAST_SIZE_TO_CUT = 2**14


class SpmdPipeline:
    """The forward pass of a stack and its loss, to be differentiated inside a function that XLA compiles.

    Args:
        stack: list of built Keras layers, in order.
        run: pair (start, end) of the layers that are alike, as `stage_map.longest_run` finds it; the last of these, as
            many as K divides, are the stages, and the others run before them.
        num_cores: K.
        num_micro_batches: M.
        recompute: 'stage' or 'layer'.
        is_partitioned: whether the program is for K cores, else for one device.
        num_rounds: V, the number of stages on each core.

    Attributes:
        stage_variables: for each weight of a stage, for each of the K cores, the list of the V Keras variables in this
            role.
        outer_variables: list of the other trainable Keras variables.
        trainable_variables: list of all of them, in the order of the stack.
        num_left_out: number of layers that are alike but run before the stages.
        ends: list of the V K indices at which the stages end, with the layers before and after them.

    Raises:
        ValueError: the stack cannot run this way; the message says why.
    """

    def __init__(self, stack: list[keras.layers.Layer], run: tuple[int, int], num_cores: int, num_micro_batches: int,
                 recompute: str = 'stage', is_partitioned: bool = True, num_rounds: int = 1) -> None:
        _validate(run, num_cores, num_rounds, recompute)
        _validate_rounds(num_cores, num_micro_batches, num_rounds)
        self._map = StageMap(num_cores, is_partitioned)
        self.num_rounds = num_rounds
        self._num_micro_batches, self._recompute = num_micro_batches, recompute
        generators = random_seeds.seed_generator_states(stack)
        self._num_seeds = len(generators)

        def part(layers):
            return stage_layers.StageLayers(
                0, [stage_layers.LayerSegment(layer, position) for position, layer in enumerate(layers)], generators)

        num_stages = num_cores * num_rounds
        size, self.num_left_out = divmod(run[1] - run[0], num_stages)
        first = run[1] - size * num_stages
        self.ends = [*range(first + size, run[1], size), len(stack)]
        self._before, self._after = part(stack[:first]), part(stack[run[1]:])
        self._stages = [part(stack[start:start + size]) for start in range(first, run[1], size)]
        self._layers = [part([layer]) for layer in stack[first:first + size]]
        for each in [self._before, *self._stages, self._after]:
            _refuse_extras(each)
        rows = zip(*[each.trainable_variables for each in self._stages])
        self.stage_variables = [[list(row[core::num_cores]) for core in range(num_cores)] for row in rows]
        outer = self._before.trainable_variables + self._after.trainable_variables
        self.outer_variables = list({id(variable): variable for variable in outer}.values())
        parts = [self._before, *self._stages, self._after]
        self.trainable_variables = list(
            {id(variable): variable for each in parts for variable in each.trainable_variables}.values())

    @property
    def num_cores(self) -> int:
        """K."""
        return self._map.num_stages

    def value_specs(self) -> tuple[list[tf.TensorSpec], list[tf.TensorSpec]]:
        """Returns the lists of `tf.TensorSpec` of `stage_values` and `outer_values`, as `metrics` takes them."""
        return ([tf.TensorSpec([self.num_cores, self.num_rounds, *row[0][0].shape], row[0][0].dtype)
                 for row in self.stage_variables],
                [tf.TensorSpec(variable.shape, variable.dtype) for variable in self.outer_variables])

    def place_stages(self, value: tf.Tensor) -> tf.Tensor:
        """Puts a value `[K, V, ...]` of the stages, or its gradient, on their cores."""
        return self._map.shard(value)

    def place_outer(self, value: tf.Tensor) -> tf.Tensor:
        """Cuts a large value of an outer variable, or its gradient, over the cores."""
        dimension = self.outer_dimension(value.shape)
        return value if dimension is None else self._map.shard(value, dimension)

    def outer_dimension(self, shape: Any) -> int | None:
        """Returns the dimension along which an outer variable is cut, the longest that K divides, or None."""
        shape = tf.TensorShape(shape)
        sizes = [size if size % self.num_cores == 0 else 0 for size in shape]
        if self.num_cores == 1 or shape.num_elements() < _LEAST_SIZE_TO_CUT or not any(sizes):
            return None
        return sizes.index(max(sizes))

    def metrics(self, loss: Callable, stage_values: list[tf.Tensor], outer_values: list[tf.Tensor], x: Any,
                targets: Any, seed_and_step: tf.Tensor) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
        """Runs a mini-batch through the pipeline, as in training.

        Args:
            loss: function `(targets, outputs) -> {name: (sum, weight)}`.
            stage_values: list of tensors `[K, V, ...]`, in the order of `stage_variables`.
            outer_values: list of tensors, in the order of `outer_variables`.
            x: nest of tensors `[batch, ...]`, of static shapes; M divides the batch.
            targets: nest of tensors `[batch, ...]`.
            seed_and_step: int64 tensor `[2]`, on which all random numbers depend; they equal those of other pipelines.

        Returns:
            Dictionary from name to the pair (sum, weight) over the mini-batch.
        """
        outer = {id(variable): self.place_outer(value) for variable, value in zip(self.outer_variables, outer_values)}
        values = [self.place_stages(value) for value in stage_values]
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
        """Seeds of every generator of the stack for every micro-batch, int32 `[M, generators, 2]`."""
        return tf.map_fn(lambda micro_batch: random_seeds.draw_seeds(seed_and_step, micro_batch, self._num_seeds),
                         tf.range(self._num_micro_batches, dtype=tf.int64), fn_output_signature=tf.int32)

    def _outer_pass(self, part, outer, inputs, targets, seeds, step, loss):
        """Runs layers outside the stages, and the loss if given, for one micro-batch after the other.

        Returns:
            Nest of tensors `[M, ...]`: outputs, or metrics.
        """
        if not part.layers and loss is None:
            return inputs
        weights, structure = [outer[id(variable)] for variable in part.trainable_variables], []

        def run(tensors):
            values, rest = tensors[:len(weights)], tensors[len(weights):]
            nest, wanted, own_seeds = tf.nest.pack_sequence_as((inputs, targets, seeds), rest)
            outputs = _call(part, nest, values, step, own_seeds)
            structure[:] = [outputs if loss is None else loss(wanted, outputs)]
            return tf.nest.flatten(structure[0])

        rows = tf.nest.flatten((inputs, targets, _of_generators(seeds, part)))
        results = _one_by_one(lambda parts: recomputing(run)([*weights, *parts]), rows)
        return tf.nest.pack_sequence_as(structure[0], results)

    def _shift_register(self, values, entering, seeds, step):
        """Runs the identical stages: from a nest `[M, micro_batch, ...]` to such a nest."""
        count, cores = self._num_micro_batches, tf.range(self.num_cores)
        num_items, last = count * self.num_rounds, self.num_cores - 1
        rows = list(map(self._map.replicate, tf.nest.flatten(entering)))
        tick = recomputing(functools.partial(self._stage, entering), self._map)
        seeds = self._seeds_of_items(seeds)
        steps = tf.fill([self.num_cores], step)

        def body(index, registers, queues, leaving):
            arrived = [self._map.shard(tf.roll(register, 1, axis=0)) for register in registers]
            entering = [self._entering(tensor, tf.minimum(index, count - 1)) for tensor in rows]
            begun = [self._begin(index, *each) for each in zip(arrived, entering, queues)]
            items = tf.clip_by_value(index - cores, 0, num_items - 1)
            own_seeds = tf.gather(seeds, items, axis=1, batch_dims=1)
            registers = tick([*values, *[register for register, _ in begun], steps, items // count, own_seeds])
            place = tf.maximum(index - last - (num_items - count), 0)  # what leaves too early is overwritten
            leaving = [array.write(place, self._leaving(register)) for array, register in zip(leaving, registers)]
            return index + 1, registers, [queue for _, queue in begun], leaving

        idle = [self._map.shard(tf.repeat(tensor[:1], self.num_cores, axis=0)) for tensor in rows]
        queues = [self._empty_queue(tensor) for tensor in idle]
        arrays = [tf.TensorArray(tensor.dtype, count, element_shape=tensor.shape[1:]) for tensor in rows]
        num_ticks = num_items + last
        *_, leaving = tf.while_loop(
            lambda index, *_: index < num_ticks, body, (0, idle, queues, arrays), maximum_iterations=num_ticks)
        return tf.nest.pack_sequence_as(entering, [self._map.replicate(array.stack()) for array in leaving])

    def _seeds_of_items(self, seeds):
        """Returns the seeds of what each core does, one micro-batch in one round after the other: `[K, V M, ...]`."""
        parts = [_of_generators(seeds, each) for each in self._stages]
        return tf.stack([tf.concat(parts[core::self.num_cores], 0) for core in range(self.num_cores)])

    def _empty_queue(self, tensor):
        """Returns what waits on each core, `[K, M - K, ...]`; only on the first core anything does."""
        length = self._num_micro_batches - self.num_cores if self.num_rounds > 1 else 0
        return self._map.shard(tf.repeat(tensor[:, tf.newaxis], length, axis=1))

    def _begin(self, index, arrived, entering, queue):
        """Gives the first core an entering micro-batch, and later what came back to it and waited in its queue.

        Args:
            index: number of the tick.
            arrived: tensor `[K, ...]`, what each core got from the one before.
            entering: tensor `[...]`, the micro-batch that enters.
            queue: tensor `[K, M - K, ...]`.

        Returns:
            Pair of what the cores work on in this tick, and the new queue.
        """
        is_first = tf.reshape(tf.range(self.num_cores) == 0, [-1] + [1] * entering.shape.rank)
        if self.num_rounds == 1:
            return self._map.shard(tf.where(is_first, entering, arrived)), queue
        returning = arrived
        if queue.shape[1]:
            queue = tf.concat([queue, arrived[:, tf.newaxis]], axis=1)
            returning, queue = queue[:, 0], self._map.shard(queue[:, 1:])
        first = tf.where(index < self._num_micro_batches, entering, returning)
        return self._map.shard(tf.where(is_first, first, arrived)), queue

    def _entering(self, rows, index):
        """Replicates before and after indexing: the gradient of `rows` would else be cut and gathered in every tick."""
        return self._map.replicate(self._map.replicate(rows)[index])

    def _leaving(self, register):
        """Returns what the last stage made, on every core: a sum in which the others take part with zeros."""
        is_last = tf.reshape(tf.range(self.num_cores) == self.num_cores - 1, [-1] + [1] * (register.shape.rank - 1))
        return self._map.replicate(tf.reduce_sum(tf.where(is_last, register, tf.zeros([], register.dtype)), axis=0))

    def _stage(self, structure, tensors):
        """Runs a stage: the layers of the first one, with the weights of a core's round and the seeds of its item."""
        *tensors, step, round_, seeds = tensors
        weights, passing = tensors[:len(self.stage_variables)], tensors[len(self.stage_variables):]
        weights = [_of_round(weight, round_) for weight in weights]
        for part in self._layers:
            count = len(part.trainable_variables)
            own, weights = weights[:count], weights[count:]
            own_seeds, seeds = seeds[:len(part.seed_positions)], seeds[len(part.seed_positions):]
            layer = functools.partial(self._layer, part, structure, count)
            passing = (recomputing(layer) if self._recompute == 'layer' else layer)([*own, *passing, step, own_seeds])
        return passing

    def _layer(self, part, structure, num_weights, tensors):
        *tensors, step, seeds = tensors
        inputs = tf.nest.pack_sequence_as(structure, tensors[num_weights:])
        return tf.nest.flatten(_call(part, inputs, tensors[:num_weights], step, seeds))


def of_layer(pipe: gpipe_layer.GPipeLayer, input_specs: Any, is_partitioned: bool) -> SpmdPipeline:
    """Makes an `SpmdPipeline` of the layers of another pipeline, with its numbers of stages and micro-batches.

    Args:
        pipe: built `GPipeLayer`.
        input_specs: nest of `tf.TensorSpec` `[batch, ...]` of its input.
        is_partitioned: see `SpmdPipeline`.
    """
    p, layer_params = pipe.params, layer_analysis.named_layer_params(pipe.params.layers, pipe.params.dtype_policy)
    run = stage_map.longest_run(layer_params, [input_specs, *[each.outputs for each in pipe.analyses]])
    return SpmdPipeline(pipe.stack, run, p.num_partitions, p.num_micro_batches, p.recompute, is_partitioned,
                        p.num_virtual_stages)


@tf.custom_gradient
def _of_round(weights, round_):
    """Returns the entry of one round of tensors `[V, ...]`.

    Its gradient is a choice, not a scatter, which a TPU would do one element after the other.
    """
    def gradient(upstream):
        is_chosen = tf.reshape(tf.range(weights.shape[0]) == round_, [-1] + [1] * upstream.shape.rank)
        return tf.where(is_chosen, upstream, tf.zeros([], upstream.dtype)), None

    return tf.gather(weights, round_) if weights.shape[0] > 1 else weights[0], gradient


def _call(part, inputs, weights, step, seeds):
    weights = list(map(tf.identity, weights))  # in the graph of the layers, where `_refuse_unused` looks for readers
    call = part.call(inputs, stage_layers.Variables(weights, []), step, part.given_seeds(seeds), training=True)
    if call.losses:
        raise ValueError(
            f'One of the layers {[layer.name for layer in part.layers]} adds a loss (add_loss or an activity '
            "regularizer), which one program for all cores leaves out. Set tpu_route='stage_programs', or compute it "
            'in the loss function.')
    extras = [variable.path for variable, *_ in [*call.scope.assigned, *call.scope.borrowed.values()]]
    if extras:
        raise ValueError(
            f'One of the layers {[layer.name for layer in part.layers]} assigns, or reads from another layer, '
            f"{extras[:3]}, which one program for all cores cannot. Set tpu_route='stage_programs'.")
    _refuse_unused(part, weights, call.outputs)
    return call.outputs


def _refuse_unused(part, weights, outputs):
    """Refuses unused weights: their gradient must be None, but is 0 here, with which weight decay changes them."""
    used = graph_pieces.ancestors(tf.nest.flatten(outputs))
    unused = [variable.path for variable, weight in zip(part.trainable_variables, weights) if weight.op not in used]
    if unused:
        raise ValueError(
            f'The outputs of the layers {[layer.name for layer in part.layers]} do not use {unused[:3]}, which one '
            'program for all cores would train all the same. Make them trainable=False, or set '
            "tpu_route='stage_programs'.")


def _of_generators(seeds, part):
    return tf.gather(seeds, tf.constant(part.seed_positions, tf.int32), axis=1)


def _one_by_one(function, rows):
    """Applies a function from a list of tensors to a list of tensors to each entry of tensors `[M, ...]`."""
    count = rows[0].shape[0]
    concrete = tf.function(function, autograph=False).get_concrete_function(
        [tf.TensorSpec(row.shape[1:], row.dtype) for row in rows])
    specs = tf.nest.map_structure(
        lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype), concrete.structured_outputs)
    arrays = [tf.TensorArray(spec.dtype, count, element_shape=spec.shape) for spec in specs]

    def body(index, arrays):
        results = function([row[index] for row in rows])
        return index + 1, [array.write(index, result) for array, result in zip(arrays, results)]

    _, arrays = tf.while_loop(lambda index, _: index < count, body, (0, arrays), maximum_iterations=count)
    return [array.stack() for array in arrays]


def _validate(run, num_cores, num_rounds, recompute):
    if run[1] - run[0] < num_cores * num_rounds:
        times = f' times num_virtual_stages={num_rounds}' if num_rounds > 1 else ''
        raise ValueError(
            f"tpu_route='spmd' needs at least num_partitions={num_cores}{times} layers in a row that are alike (equal "
            f"params, outputs shaped as inputs), but finds {run[1] - run[0]}. Set tpu_route='stage_programs', or fewer "
            'partitions.')
    if recompute == 'none':
        raise ValueError("recompute='none' does not go with tpu_route='spmd', which keeps nothing of a tick but what "
                         "entered it. Set recompute to 'stage' or 'layer', or tpu_route to 'stage_programs'.")


def _validate_rounds(num_cores, num_micro_batches, num_rounds):
    if num_rounds > 1 and num_micro_batches < num_cores:
        raise ValueError(
            f"num_virtual_stages={num_rounds} with tpu_route='spmd' needs at least as many micro-batches as "
            f'partitions, but num_micro_batches={num_micro_batches} is less than num_partitions={num_cores}: a '
            f'micro-batch would come back before the last one has entered. Set num_micro_batches to {num_cores} or '
            'more, or num_virtual_stages to 1.')


def _refuse_extras(part):
    variables = [variable.path for variable in part.variables().state]
    if variables:
        raise ValueError("tpu_route='spmd' takes layers without state other than weights, but there is "
                         f"{variables[:3]}. Set tpu_route='stage_programs'.")
    constrained = [variable.path for variable in part.trainable_variables if variable.constraint]
    if constrained:
        raise ValueError(f"tpu_route='spmd' takes weights without constraint, but {constrained[:3]} have one. Leave it "
                         "out, or set tpu_route='stage_programs'.")
