"""Compares a pipeline with the plain model on one device, and says what came out: equal, refused, different or
crashed."""

import contextlib
import pathlib
import re
import traceback
import warnings
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

import lingpipe
from tests.fuzz import observed, pipelined, reference

EQUAL, REFUSED, DIFFERENT, CRASHED, INVALID = 'equal', 'refused', 'different', 'crashed', 'invalid'
_TOLERANCES = {16: 5e-2, 32: 1e-4, 64: 1e-9}  # oneDNN's tanh: 6e-5
_MOST_TIMES_ROUNDED = 4  # a difference of two sums, each rounded in an order of its own
_LEAST_SCALE, _LEAST_SCALES = 1e-3, {'changes of weights': 1e-2}  # weights of about 1 are rounded
_NO_EMPTY_MICRO_BATCH = 'The batch has fewer rows than num_micro_batches'
_LINGPIPE = pathlib.Path(lingpipe.__file__).parent


class Outcome(NamedTuple):
    """What a comparison came to."""

    kind: str  # EQUAL, REFUSED, DIFFERENT, CRASHED, or INVALID where plain Keras cannot run the model either
    reason: str = ''  # what differs, the error, or the words of the refusal


def compare(make, x, y, sample_weight, loss, fields, way, make_exact=None, make_optimizer=None, random_in=(),
            num_bits=32, amplifies_noise=False, predicts=False, couples_rows=False, num_steps=2,
            between=(), second=None, **arguments):
    """Train a model plain and as a pipeline.

    Args:
        make: function that makes the model, each time with the same weights.
        x: nest of arrays `[batch, ...]`.
        y: nest of arrays `[batch, ...]`.
        sample_weight: array `[batch, ...]`, or None.
        loss: the loss, as `way` takes it.
        fields: dictionary of the fields of the pipeline.
        way: name of the method of `PlainModel` and `PipelinedModel` that trains.
        make_exact: function that makes the model in floats of more bits, or None; what differs by no more than a few
            times what the plain model differs from this one is equal.
        make_optimizer: function from the model to the optimizer, for `fit`; it is called before the pipeline is made.
        random_in: list of the modes, 'training' and 'inference', in which layers draw random numbers; where there are
            any, one partition without recomputation is the reference.
        num_bits: 16 where something is computed in 16 bits, 64 where all is computed in 64 bits; else 32.
        amplifies_noise: whether the optimizer brings gradients of any size to one size; where one should be 0 and is
            not quite, no more is compared than that both run.
        predicts: whether outputs in inference are compared too, after training.
        couples_rows: whether a row depends on others, so that outputs are compared with those of the whole batch.
        num_steps: how often `way` is called.
        between: names of methods of `PlainModel` and `PipelinedModel` that use the layers between two steps.
        second: dictionary of the fields of another pipeline over the same layers.
        **arguments: passed on to `way`.
    """
    data = observed.Data(x, y, sample_weight, loss)
    modes = [mode for mode in random_in if mode == 'inference' or way == 'value_and_grad']

    def make_both(make=make):
        model = make()
        return model, None if make_optimizer is None else make_optimizer(model)

    def observe(subject):
        return _observe(
            subject, getattr(subject, way), data, predicts, couples_rows, num_steps, between, arguments)

    def pipelined_model(fields):
        model, optimizer = make_both()
        return pipelined.PipelinedModel(model, fields, optimizer, second)

    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        try:
            forget()
            model, optimizer = make_both()
            plain = reference.PlainModel(model, _num_micro_batches(fields), optimizer)
            expected = observe(plain)
            draws_anew = {mode: plain.draws_anew(data, mode == 'training') for mode in modes}
            if not _is_finite(expected):
                return Outcome(INVALID, 'numbers are not finite, as where all of a row is masked')
        except Exception as error:  # noqa: BLE001
            return Outcome(INVALID, _text_of(error))
        try:
            forget()
            if random_in:
                expected = observe(pipelined_model(_with_one_partition(fields)))
                if not _is_finite(expected):
                    return Outcome(INVALID, 'numbers are not finite where the random numbers are those of a pipeline')
                forget()
            pipe = pipelined_model(fields)
            found = observe(pipe)
            wrong = pipe.misplaced() or _repeated(draws_anew, pipe, data)
        except Exception as error:  # noqa: BLE001
            return _outcome_of_error(error)
    if wrong:
        return Outcome(DIFFERENT, wrong)
    if amplifies_noise and plain.has_noise:
        return Outcome(EQUAL, 'not compared: a gradient is 0 but for rounding')
    outcome = _outcome_of(found, expected, _TOLERANCES[num_bits])
    if outcome.kind == DIFFERENT and make_exact and not random_in:
        with contextlib.suppress(Exception):  # a layer that takes no other floats
            forget()
            weights = make().get_weights()
            forget()
            model, optimizer = make_both(make_exact)
            model.set_weights(weights)  # else it starts with other random numbers
            exact = observe(reference.PlainModel(model, _num_micro_batches(fields), optimizer))
            if _is_within_rounding(found, expected, exact):
                return Outcome(EQUAL, f'but for rounding: {outcome.reason}')
    return outcome


def forget():
    """Let Keras name layers from the start again, under its default policy."""
    keras.config.set_floatx('float32')
    keras.config.set_dtype_policy('float32')
    keras.backend.clear_session(free_memory=False)


def _num_micro_batches(fields):
    return fields['num_micro_batches'] * fields.get('num_replicas', 1)


def _with_one_partition(fields):
    return {
        'num_micro_batches': _num_micro_batches(fields), 'num_partitions': 1, 'schedule': 'gpipe', 'recompute': 'none'}


def _repeated(draws_anew, pipe, data):
    """Say what random numbers are the same in, although plain Keras draws new ones; None where all is well."""
    for mode, in_keras in draws_anew.items():
        found = pipe.draws_anew(data, mode == 'training') if any(in_keras) else in_keras
        for in_pipe, expected, what in zip(found, in_keras, ['calls', 'micro-batches']):
            if expected and not in_pipe:
                return f'random numbers are the same in all {what}, in {mode}'
    return None


def _observe(subject, way, data, predicts, couples_rows, num_steps, between, arguments):
    """Return a dictionary from a group of numbers to the dictionary from a name to an array or None."""
    before = _variables(subject)
    found = {}
    for number in range(num_steps):
        for use in between if number else ():
            found[use] = _named(subject, use, getattr(subject, use)(data))
        for name, part in way(data, **arguments)._asdict().items():
            found[f'{name} of step {number}'] = _named(subject, name, part)
    after = _variables(subject)
    trainable = {
        _name(number, variable) for number, variable in enumerate(subject.model.variables) if variable.trainable}
    found['changes of weights'] = {name: after[name] - before[name] for name in after if name in trainable}
    found['state'] = {name: after[name] for name in after if name not in trainable}
    if predicts:
        found['predictions'] = _named(subject, 'outputs', observed.as_arrays(subject.outputs(data.x)))
    if couples_rows:
        found['outputs of the whole batch'] = _named(
            subject, 'outputs', observed.as_arrays(subject.outputs_of_whole_batch(data.x)))
    return found


def _variables(subject):
    return {_name(number, variable): variable.numpy() for number, variable in enumerate(subject.model.variables)
            if variable.name != 'seed_generator_state'}


def _name(number, variable):
    return f'{number}: {variable.path}'


def _named(subject, name, part):
    if name == 'gradients':
        return {_name(number, variable): leaf for number, (variable, leaf) in enumerate(
            zip(subject.model.trainable_variables, part))}
    if isinstance(part, dict):
        return {key: np.asarray(value) for key, value in part.items()}
    return {
        str(number): leaf if leaf is None else np.asarray(leaf) for number, leaf in enumerate(tf.nest.flatten(part))}


def _is_finite(found):
    return all(np.isfinite(array.astype('float64')).all() for group in found.values() for array in group.values()
               if array is not None)


def _outcome_of(found, expected, tolerance):
    for group, wanted in expected.items():
        if found[group].keys() != wanted.keys():
            return Outcome(DIFFERENT, f'{group}: {sorted(found[group])}, in Keras {sorted(wanted)}')
        scale = max(_LEAST_SCALES.get(group, _LEAST_SCALE), *map(_largest, _groups_of_one_size(group, expected)))
        is_float32 = group.startswith('history')  # Keras's means of losses, whatever the floats of the model are
        allowed = scale * (max(tolerance, _TOLERANCES[32]) if is_float32 else tolerance)
        for name, array in wanted.items():
            difference, text = _difference(found[group][name], array)
            if not difference <= allowed:
                return Outcome(DIFFERENT, f'{group}, {name}: {text}; the largest of all is {scale:.3g}')
    return Outcome(EQUAL)


def _is_within_rounding(found, expected, exact):
    """Whether nothing differs by more than a few times what plain Keras's own rounding adds."""
    return all(
        _difference(found[group][name], array)[0] <= _MOST_TIMES_ROUNDED * _rounding(wanted, exact.get(group, {}))
        for group, wanted in expected.items() for name, array in wanted.items())


def _rounding(wanted, exact):
    """Return the largest difference between a group of arrays and the exact ones, 0 where they cannot be compared."""
    pairs = [(array, exact.get(name)) for name, array in wanted.items() if array is not None]
    if any(other is None or array.shape != other.shape for array, other in pairs):
        return 0.0
    return _largest({str(number): array.astype('float64') - other for number, (array, other) in enumerate(pairs)})


def _groups_of_one_size(group, expected):
    """Gradients of inputs may all be 0 but for rounding, as those of a mean of normalized values are; those of weights
    are not."""
    return [expected[group], expected.get(group.removeprefix('input_'), {})]


def _largest(group):
    return max([np.abs(array.astype('float64')).max(initial=0.0) for array in group.values() if array is not None],
               default=0.0)


def _difference(found, wanted):
    """Return the largest difference, and what to say of it."""
    if found is None or wanted is None:
        return 0.0 if found is wanted else np.inf, f'{_short(found)}, in Keras {_short(wanted)}'
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return np.inf, f'{found.dtype} {found.shape}, in Keras {wanted.dtype} {wanted.shape}'
    largest = np.abs(found.astype('float64') - wanted.astype('float64')).max(initial=0.0)
    return largest, f'differs by {largest:.3g}: {_short(found)}, in Keras {_short(wanted)}'


def _short(array):
    return 'None' if array is None else np.array2string(array.reshape(-1)[:4], precision=4, separator=', ')


def _outcome_of_error(error):
    """A refusal is raised by the project itself, names what it is about and ends with what to do."""
    if isinstance(error, tf.errors.InvalidArgumentError) and _NO_EMPTY_MICRO_BATCH in str(error):  # told at run time
        return Outcome(REFUSED, _NO_EMPTY_MICRO_BATCH)
    frame = traceback.extract_tb(error.__traceback__)[-1]
    is_refusal = isinstance(error, (ValueError, NotImplementedError)) and 'raise ' in frame.line
    if not (is_refusal and _LINGPIPE in pathlib.Path(frame.filename).parents):
        return Outcome(CRASHED, _text_of(error))
    words = _words_of(error)
    if re.search(r"'[^']+'|\w=", words) and re.search(r'\. [A-Z][^.]*.*\.$', words, re.DOTALL):
        return Outcome(REFUSED, words)
    return Outcome(CRASHED, f'a refusal that names nothing or says no way out: {words}')


def _words_of(error):
    """Return a message without what Keras puts around it where a layer's call fails."""
    inside = re.search(r'\x1b\[1m(.*?)\x1b\[0m', str(error), re.DOTALL)
    return (inside[1] if inside else str(error)).strip()


def _text_of(error):
    frame = traceback.extract_tb(error.__traceback__)[-1]
    lines = _words_of(error).splitlines() or ['']
    text = lines[0][:200] + ('' if len(lines) == 1 else f' ... {lines[-1][:200]}')
    return f'{type(error).__name__} at {pathlib.Path(frame.filename).name}:{frame.lineno}: {text}'
