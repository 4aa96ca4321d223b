"""Text generation on a pipeline, with several groups of prompts at once."""

import contextlib
import copy
import functools
import operator
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from lingpipe.devices import variable_placement
from lingpipe.keras_graph import cached_calls
from lingpipe.models.sampling import LoopSampler

_METHODS = ('call_encoder', 'call_with_cache', 'call_decoder_with_cache')


class PipelinedGeneration:
    """A pipelined `generate_function` for a KerasHub task or a `StackTask`.

    The devices work on different groups of prompts at the same time::

        group 0   device 0 ─> device 1 ─> sample ─> device 0 ─> device 1 ─> sample ─> ...
        group 1               device 0 ─> device 1 ─> sample ─> device 0 ─> device 1 ─> ...

    Random numbers, and therefore texts, do not depend on the number of groups.

    Args:
        task: KerasHub task or `prompted_texts.StackTask`, with weights on the devices of the stages.
        num_groups: largest number of groups of prompts; each group has at least one prompt.
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
        """Generate texts. Return a dictionary with tokens and masks `[batch, length]` of the texts.

        Args:
            inputs: dictionary of arrays `[batch, ...]`, as the task's preprocessor makes them.
            stop_token_ids: tokens that end a text; None: texts end only where the arrays end.
        """
        tensors = _map_tensors(tf.convert_to_tensor, inputs)
        return self._generate(tensors, stop_token_ids and tuple(stop_token_ids))

    def _generate_groups(self, inputs, stop_token_ids):
        require_known(self._task.sampler)
        values = self._weights.read(self._read)
        calls = {name: functools.partial(call, values) for name, call in self._calls.items()}
        draws, found = _Draws(self._task.sampler, _mask_of(inputs)), []
        for rows in _groups_of(draws.num_rows, self._num_groups):
            sampler = _GroupSampler(draws, rows)
            with tf.device(self._weights.devices[-1]), replaced(self._task, {**calls, 'sampler': sampler}):
                found.append(self._task.generate_step(_map_tensors(operator.itemgetter(rows), inputs), stop_token_ids))
        draws.finish()
        return _map_tensors(lambda *parts: tf.concat(parts, 0), *found)


def _map_tensors(function, *nests):
    """Apply a function to the tensors of nests."""
    # None stands for a missing input, such as images for a text without images.
    return keras.tree.map_structure(lambda *leaves: None if leaves[0] is None else function(*leaves), *nests)


def _mask_of(inputs):
    return inputs['decoder_padding_mask' if 'decoder_padding_mask' in inputs else 'padding_mask']


def _groups_of(num_rows, num_groups):
    parts = np.array_split(np.arange(num_rows), min(num_groups, num_rows))
    return [slice(int(part[0]), int(part[-1]) + 1) for part in parts]


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
    """Values of a sampler's random state at each position, equal for any number of groups."""

    def __init__(self, sampler, mask):
        self.sampler, self.num_rows = sampler, mask.shape[0]
        # the position at which the shortest prompt ends, where one batch of all prompts would start
        self.first_index = tf.reduce_min(tf.reduce_sum(tf.cast(mask, tf.int32), -1))
        self.variables = sampler.variables
        self._states = [variable.value.read_value() for variable in self.variables]
        self._end = self.first_index
        self._growth = []

    def state_before(self, index):
        """Return pairs (state variable, its value before the token at position `index` is drawn)."""
        if not self._growth:
            self._growth = self._measured_growth()
        return [(variable, state + growth * tf.cast(index - self.first_index, state.dtype))
                for variable, state, growth in zip(self.variables, self._states, self._growth)]

    def _measured_growth(self):
        """Measure how much one draw adds to each state variable."""
        with tf.init_scope(), keras.StatelessScope(state_mapping=[
                (variable, tf.zeros(variable.shape, variable.dtype)) for variable in self.variables]) as scope:
            self.sampler.get_next_token(tf.fill([1, 128], 1 / 128))
            return [np.asarray(scope.get_current_value(variable)) for variable in self.variables]

    def note_end(self, index):
        """Record the position at which a group ended."""
        self._end = tf.maximum(self._end, index)

    def finish(self):
        """Set the state variables of the sampler as if all rows had been one batch."""
        if self._growth:
            for variable, state in self.state_before(self._end):
                variable.assign(state)


class _GroupSampler:
    """Sampler for one group of prompts, with the same random numbers as without groups."""

    def __init__(self, draws, rows):
        self._draws, self._rows, self._sampler = draws, rows, copy.copy(draws.sampler)
        self._index: Any = None

    def __call__(self, next, **arguments):
        def next_logits(prompt, cache, index):
            self._index = index
            return next(prompt, cache, index)

        run = self._sampler.run_loop

        def run_loop(*arguments, **named):
            found = run(*arguments, **named)
            self._draws.note_end(found[2])
            return found

        with replaced(self._sampler, {'run_loop': run_loop, 'get_next_token': self._draw}):
            return self._sampler(next=next_logits, **arguments)

    def _draw(self, probabilities):
        """Draw the next token of each row."""
        draws, rows = self._draws, self._rows
        if not draws.variables:
            return draws.sampler.get_next_token(probabilities)
        others = tf.fill([draws.num_rows - probabilities.shape[0], probabilities.shape[1]],
                         tf.constant(1 / probabilities.shape[1], probabilities.dtype))
        everyone = tf.concat([others[:rows.start], probabilities, others[rows.start:]], 0)
        with keras.StatelessScope(state_mapping=draws.state_before(self._index)):
            return draws.sampler.get_next_token(everyone)[rows]


def require_known(sampler: Any) -> None:
    """Raise NotImplementedError if the sampler does more than draw the next token, as beam search does."""
    if isinstance(sampler, LoopSampler):
        return
    from keras_hub import samplers  # pylint: disable=import-outside-toplevel

    if not isinstance(sampler, samplers.Sampler) or type(sampler).__call__ is not samplers.Sampler.__call__:
        raise NotImplementedError(
            f'sampler={sampler!r} is not one of those that only draw the next token, which a pipeline supports. Give '
            "'greedy', 'top_k', 'top_p' or 'random', or save the model, and generate with the plain one.")


@contextlib.contextmanager
def replaced(target: Any, attributes: dict[str, Any]) -> Iterator[None]:
    """Replace attributes of `target` in the `with` block."""
    before = {name: vars(target)[name] for name in attributes if name in vars(target)}
    vars(target).update(attributes)  # `__setattr__` would track the values
    try:
        yield
    finally:
        for name in attributes:
            del vars(target)[name]
        vars(target).update(before)
