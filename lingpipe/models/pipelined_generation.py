"""Text generation on the devices of a pipeline, with several groups of prompts at once."""

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from lingpipe import spelling
from lingpipe.devices import variable_placement
from lingpipe.keras_graph import cached_calls
from lingpipe.models.sampling import LoopSampler

_SAMPLERS = ['greedy', 'top_k', 'top_p', 'random', 'beam']
_METHODS = ('call_encoder', 'call_with_cache', 'call_decoder_with_cache')


class PipelinedGeneration:
    """A pipelined `generate_function` of a KerasHub task, or of an object that generates like one.

    Every group of prompts has its own loop over tokens, which does not wait for other groups. So each device computes
    for one group while the other devices compute for other groups::

        group 0   device 0 ─> device 1 ─> sample ─> device 0 ─> device 1 ─> sample ─> ...
        group 1               device 0 ─> device 1 ─> sample ─> device 0 ─> device 1 ─> ...

    The task's own `generate_step` and sampler run for each group. Rows get the same random numbers as if all
    prompts were one batch, so the text does not depend on the number of groups. KerasHub's beam search ends when all
    texts of a batch have ended, and until then improves those that have ended. So with stop tokens it has only one
    group.

    Args:
        task: KerasHub task, or `prompted_texts.StackTask`; its weights are on the devices of the stages.
        num_groups: number of groups of prompts; there are fewer if there are fewer prompts.
        jit_compile: whether XLA compiles the function of each stage.
        read: function that returns the value to use for a Keras variable, such as its moving average.
    """

    def __init__(self, task: Any, stages: list, num_groups: int, jit_compile: bool = False,
                 read: Callable = variable_placement.read_variable) -> None:
        self._task, self._num_groups, self._read = task, num_groups, read
        self._weights = _weights_of(task, stages)
        self._calls = {name: cached_calls.CachedCall(getattr(task, name), self._weights, jit_compile)
                       for name in _METHODS if hasattr(task, name)}
        self._generate = tf.function(self._generate_groups, autograph=False)

    def __call__(self, inputs: dict[str, Any], stop_token_ids: Any = None) -> dict[str, tf.Tensor]:
        """Return the dictionary with the tokens and masks `[batch, length]`.

        Args:
            inputs: dictionary of arrays `[batch, ...]`, as the task's preprocessor makes them.
            stop_token_ids: list of the tokens that end a text; None: every text is as long as the arrays.
        """
        tensors = _map_tensors(tf.convert_to_tensor, inputs)
        return self._generate(tensors, stop_token_ids and tuple(stop_token_ids))

    def _generate_groups(self, inputs, stop_token_ids):
        num_rows, sampler = inputs[_mask_key(inputs)].shape[0], self._task.sampler
        _require_known(sampler)
        are_bound = _searches_beams(sampler) and stop_token_ids is not None
        values, draws = self._weights.read(self._read), _Draws(sampler, num_rows)
        found = []
        for rows in _groups_of(num_rows, 1 if are_bound else self._num_groups):
            group = _Group(self._task, self._calls, values, inputs, rows, draws)
            with tf.device(self._weights.devices[-1]):
                found.append(group.generate(stop_token_ids))
        draws.finish()
        return _map_tensors(lambda *parts: tf.concat(parts, 0), *found)


def states_of(sampler: Any) -> list[tuple[keras.Variable, np.ndarray]]:
    """Return pairs of a variable of a sampler and its value, with which the same draws can be made again."""
    return [(variable, np.asarray(variable)) for variable in sampler.variables]


def _map_tensors(function, *nests):
    """Map over the tensors of nests, which have None for the images of a text without images."""
    return keras.tree.map_structure(lambda *leaves: None if leaves[0] is None else function(*leaves), *nests)


def _mask_key(inputs):
    return 'decoder_padding_mask' if 'decoder_padding_mask' in inputs else 'padding_mask'


def _groups_of(num_rows, num_groups):
    parts = np.array_split(np.arange(num_rows), min(num_groups, num_rows))
    return [slice(int(part[0]), int(part[-1]) + 1) for part in parts]


def _searches_beams(sampler):
    return getattr(sampler, 'num_beams', 1) > 1


def _weights_of(task, stages):
    numbers = {}
    for number, stage in enumerate(stages):
        variables = stage.variables()
        for variable in [*variables.weights, *variables.state]:
            numbers.setdefault(id(variable), number)
    known = [variable for variable in task.variables if id(variable) in numbers]
    return cached_calls.Weights(
        known, [numbers[id(variable)] for variable in known], [stage.device for stage in stages])


class _Draws:
    """The random numbers of a sampler, as it would draw them for all rows at once."""

    def __init__(self, sampler, num_rows):
        self.sampler, self.num_rows = sampler, num_rows
        self.variables = sampler.variables
        self._states = [variable.value.read_value() for variable in self.variables]
        self._num_tokens = tf.constant(0)
        self._growth = []

    def state_before(self, token):
        """Return the list of pairs of a variable and its value before the draw of a token."""
        if not self._growth:
            self._growth = self._measured_growth()
        return [(variable, state + growth * tf.cast(token, state.dtype))
                for variable, state, growth in zip(self.variables, self._states, self._growth)]

    def _measured_growth(self):
        """Draw once, outside every graph, to see how the states change."""
        with tf.init_scope(), keras.StatelessScope(state_mapping=[
                (variable, tf.zeros(variable.shape, variable.dtype)) for variable in self.variables]) as scope:
            self.sampler.get_next_token(tf.fill([1, 128], 1 / 128))
            return [np.asarray(scope.get_current_value(variable)) for variable in self.variables]

    def note(self, num_tokens):
        """Record how many tokens a group has drawn."""
        self._num_tokens = tf.maximum(self._num_tokens, num_tokens)

    def finish(self):
        """Set the states as they would be after one batch of all rows."""
        if self._growth:
            for variable, state in self.state_before(self._num_tokens):
                variable.assign(state)


class _Group:
    """Generates for some of the prompts; the caches of the layers are kept here and not in the sampler.

    The sampler gets row numbers instead of a cache. It repeats and reorders them as it would the cache itself::

        sampler's cache   [0 1 2 3]  ─ beams ─> [0 0 2 3]
                                                    │ rows to take
        caches of layers   on device 0, 1, ..  <────┘
    """

    def __init__(self, task, calls, values, inputs, rows, draws):
        self._task, self._calls, self._values, self._draws, self._rows = task, calls, values, draws, rows
        self._all_inputs = inputs
        self._inputs = _map_tensors(lambda tensor: tensor[rows], inputs)
        self._parts: dict[str, Any] = {}
        self._row_numbers: dict[str, tf.Tensor] = {}
        self._splits: dict[str, Any] = {}
        self._index: Any = None

    def generate(self, stop_token_ids):
        """Return the result of the task's `generate_step`."""
        replacements = {name: self._caller(call) for name, call in self._calls.items()}
        with replaced(self._task, {**replacements, 'sampler': _Sampler(self, self._draws.sampler)}):
            return self._task.generate_step(self._inputs, stop_token_ids)

    def _caller(self, call):
        def run(*arguments, **named):
            arguments = call.bind(*arguments, **named)
            self._check_row_numbers(call, arguments)
            parts = {name: self._parts[name] for name in call.caches if name in self._parts}
            results, new = call(self._values, arguments, parts)
            self._parts.update(new)
            self._splits.update(call.splits)
            for name in new:
                if name not in self._row_numbers:
                    self._row_numbers[name] = tf.range(new[name][0][0].shape[0])
            results += [self._row_numbers[name] for name in call.caches]
            return tuple(results) if len(results) > 1 else results[0]

        return run

    def _check_row_numbers(self, call, arguments):
        for name in call.caches:
            if name in self._parts and arguments[name] is not self._row_numbers[name]:
                raise NotImplementedError(
                    f'{type(self._task).__name__}.generate_step changes its caches itself, which a pipeline does not '
                    'support. Generate with the plain model.')

    def places(self, cache):
        """Return the dictionary from name of a cache to its place in the sampler's flat cache."""
        leaves = keras.tree.flatten(cache)
        return {name: place for place, leaf in enumerate(leaves)
                for name, numbers in self._row_numbers.items() if leaf is numbers}

    def loop(self, places, cond, body, loop_vars, maximum_iterations):
        """Run the loop of a sampler with the caches of the layers in addition to its own variables."""
        prompt, cache, *others = loop_vars
        cache = self._take_rows(places, cache)
        first = self.first_index()
        outer = self._parts, self._row_numbers

        def step(loop_vars, parts):
            prompt, cache, index, *others = loop_vars
            leaves = keras.tree.flatten(cache)
            self._parts = parts
            self._row_numbers = {name: leaves[place] for name, place in places.items()}
            self._index = index - first
            prompt, cache, *others = body(prompt, cache, index, *others)
            return (prompt, self._take_rows(places, cache), *others), self._parts

        found, _ = tf.while_loop(
            lambda loop_vars, _: cond(*loop_vars), step, ((prompt, cache, *others), self._parts),
            maximum_iterations=maximum_iterations)
        self._parts, self._row_numbers = outer
        self._draws.note(found[2] - first)
        return found

    def _take_rows(self, places, cache):
        """Put the caches of the layers into the order that the sampler chose; then its row numbers ascend again."""
        leaves = keras.tree.flatten(cache)
        for name, place in places.items():
            rows, numbers = leaves[place], self._row_numbers[name]
            if rows is not numbers:
                self._parts = {**self._parts, name: [
                    split.gather(parts, rows) for split, parts in zip(self._splits[name], self._parts[name])]}
                same = rows.shape == numbers.shape
                leaves[place] = numbers if same else tf.range(rows.shape[0])
                self._row_numbers = {**self._row_numbers, name: leaves[place]}
        return keras.tree.pack_sequence_as(cache, leaves)

    def first_index(self):
        """Return the position at which the shortest prompt ends, where one batch of all prompts would start."""
        mask = self._all_inputs[_mask_key(self._all_inputs)]
        return tf.reduce_min(tf.reduce_sum(tf.cast(mask, tf.int32), -1))

    def draw(self, probabilities):
        """Return the next tokens `[rows]`, drawn as if all rows of all groups were one batch."""
        draws, rows = self._draws, self._rows
        if not draws.variables:
            return draws.sampler.get_next_token(probabilities)
        others = tf.fill([draws.num_rows - probabilities.shape[0], probabilities.shape[1]],
                         tf.constant(1 / probabilities.shape[1], probabilities.dtype))
        everyone = tf.concat([others[:rows.start], probabilities, others[rows.start:]], 0)
        with keras.StatelessScope(state_mapping=draws.state_before(self._index)):
            return draws.sampler.get_next_token(everyone)[rows]


class _Sampler:
    """A sampler whose loop keeps the caches of the layers separately."""

    def __init__(self, group, sampler):
        self._group, self._sampler = group, copy.copy(sampler)

    def __call__(self, cache, index, **arguments):
        places = self._group.places(cache)
        if _searches_beams(self._sampler):  # which already counts tokens after the shortest prompt
            index = self._group.first_index()

        def run_loop(cond, body, model=None, loop_vars=None, maximum_iterations=None):
            del model
            return self._group.loop(places, cond, body, loop_vars, maximum_iterations)

        with replaced(self._sampler, {'run_loop': run_loop, 'get_next_token': self._group.draw}):
            return self._sampler(cache=cache, index=index, **arguments)


def find_sampler(sampler: Any) -> Any:
    """Return KerasHub's sampler of a name; a sampler is returned as it is.

    Raises:
        ValueError: there is no sampler of this name.
    """
    from keras_hub import samplers  # pylint: disable=import-outside-toplevel

    is_wrong = isinstance(sampler, str) and not sampler.islower()  # for KerasHub would raise a KeyError
    found = sampler if is_wrong else samplers.get(sampler)
    if isinstance(found, str):
        raise ValueError(f'sampler={sampler!r} is unknown{spelling.did_you_mean(sampler, _SAMPLERS)} Give one of '
                         f'{_SAMPLERS}, or a sampler of keras_hub.samplers.')
    return found


def _require_known(sampler):
    if isinstance(sampler, LoopSampler):
        return
    from keras_hub import samplers  # pylint: disable=import-outside-toplevel

    if type(sampler).__call__ not in (samplers.Sampler.__call__, samplers.BeamSampler.__call__):
        raise NotImplementedError(
            f'{type(sampler).__name__} keeps more than a cache, which no pipeline supports. Compile the task with '
            f'another sampler: one of {_SAMPLERS}.')


@contextlib.contextmanager
def replaced(target: Any, attributes: dict[str, Any]) -> Iterator[None]:
    """Replace attributes of an object in the `with` block, without its own `__setattr__`, which would track them."""
    before = {name: vars(target)[name] for name in attributes if name in vars(target)}
    vars(target).update(attributes)
    try:
        yield
    finally:
        for name in attributes:
            del vars(target)[name]
        vars(target).update(before)
