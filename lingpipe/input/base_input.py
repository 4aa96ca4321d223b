"""The base class of inputs: where the data are, their order, how batches are made, which records are left out."""

import threading
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from lingpipe import hyperparams

# No function of an input branches on a tensor. AutoGraph would take most of the start-up time to find that out.
without_autograph = tf.autograph.experimental.do_not_convert
_FIELDS_OF_SOURCE = ('name', 'files', 'dataset', 'split', 'data_dir')


def parallel_map(dataset: tf.data.Dataset, function: Callable[..., Any]) -> tf.data.Dataset:
    """Returns `dataset.map(function)` with parallel calls, and the results in the order of the dataset."""
    return dataset.map(function, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


class BaseInput:
    """Batches of a TFDS dataset.

    A subclass extends `Params()`, and defines the static methods `InputSpec(params)` and `TargetSpec(params)`, which
    return the nest and the tuple of the `tf.TensorSpec`s of a batch and prepare no data, the attribute `input_spec`,
    and two methods that return a `tf.data.Dataset` of (inputs, *targets):

    * `training_dataset(position, share)`: endless batches from the example on before which `position` were seen, over
      all epochs, bit for bit those of an uninterrupted run for every earlier batch size. It makes the rows of a
      `batch_share.Share` of each batch, and does as little work as possible for other rows. It raises ValueError if the
      position is negative, no batch can be made, or the shares do not divide it.
    * `evaluation_dataset()`: every example once, in stored order; what fills the last batch up has weight 0.

    Args:
        params: `Params()` of the subclass.

    Raises:
        ValueError: a field is wrong.
        RuntimeError: the data do not exist and cannot be prepared.

    Attributes:
        example_name: word for an example.
        params: the frozen Params, in which the seed is a number.
        bad_records: dictionary from the name of each record that was skipped so far to its problem; None if records are
            not checked.
        bad_records_rule: words that name the data and say how many bad records may be skipped.
    """

    example_name = 'examples'
    bad_records: Any = None  # a dictionary in subclasses, which may make it a property
    bad_records_rule = ''
    input_spec: Any
    InputSpec: Callable[[hyperparams.Params], Any]
    TargetSpec: Callable[[hyperparams.Params], tuple]
    training_dataset: Callable[..., tf.data.Dataset]
    evaluation_dataset: Callable[..., tf.data.Dataset]

    @classmethod
    def Params(cls) -> hyperparams.InstantiableParams:
        """Returns the InstantiableParams of this input."""
        p = hyperparams.InstantiableParams(cls)
        p.Define('name', None, 'Name of the input.')
        p.Define('dataset', None, 'TFDS name of the dataset.')
        p.Define('data_dir', None, 'Directory of prepared data; None: $TFDS_DATA_DIR, or ~/tensorflow_datasets.')
        p.Define('split', 'train', "TFDS split, such as 'train', 'test' or 'train[:90%]'.")
        p.Define('batch_size', None, 'Number of examples in a batch.')
        p.Define('shuffle', True, 'Whether training visits the examples in a new random order in every epoch.')
        p.Define(
            'seed', None, "Integer from 0 that fixes order and augmentation; None: the training's random_seed, or 0.")
        p.Define('prefetch', None, 'Number of batches made ahead; None: tuned by tf.data; 0: none.')
        return p

    @staticmethod
    def Preprocessing(params: hyperparams.Params) -> keras.layers.Layer | None:
        """Returns the layer that makes the input of an exported model of plain data; None: nothing is needed."""
        del params
        return None

    def __init__(self, params: hyperparams.Params) -> None:
        self.params = params.Copy()
        self.params.seed = params.seed or 0
        self.params.Freeze()
        self._check_params()

    @property
    def source(self) -> str:
        """Words that name the data."""
        return source_of(self.params)

    @property
    def batch_spec(self) -> tuple:
        """Tuple of the `tf.TensorSpec`s of a batch: the nest of the inputs, then each target."""
        return self.input_spec, *self.TargetSpec(self.params)

    def _check_params(self):
        """Raises ValueError for a field that cannot work; a subclass adds its own."""
        self._check_at_least(batch_size=1, seed=0)
        if self.params.prefetch is not None:
            self._check_at_least(prefetch=0)

    def _check_at_least(self, **minimums):
        for field, minimum in minimums.items():
            value = self.params.Get(field)
            if not isinstance(value, int) or value < minimum:
                raise ValueError(f'{field}: {value!r} is not allowed. Set it to an integer of at least {minimum}.')

    def _check_position(self, position):
        if position < 0:
            raise ValueError(
                f'position: {position} is negative. Give the number of {self.example_name} seen before, 0 or more.')

    def _finish(self, batches):
        """Prefetches batches, always in the same order."""
        options = tf.data.Options()
        options.deterministic = True
        if self.params.prefetch == 0:
            # The default optimizations of tf.data would add a prefetch.
            options.experimental_optimization.apply_default_optimizations = False
            return batches.with_options(options)
        return batches.prefetch(self.params.prefetch or tf.data.AUTOTUNE).with_options(options)


def source_of(params: hyperparams.Params) -> str:
    """Returns words that name the data of an input.

    Args:
        params: its Params.
    """
    fields = {field: params.Get(field) for field in _FIELDS_OF_SOURCE if field in params}
    named = ', '.join(f'{field}={value!r}' for field, value in fields.items() if value is not None)
    return f'{params.cls.__name__}({named})'


class BadRecords:
    """Counts and names bad records while their batches are made, in the process that trains.

    A record is counted once, even if it is visited several times.

    Args:
        max_bad_records: how many may be skipped; None: any number.
        source: name of the data, for messages.

    Attributes:
        reasons: dictionary from the name of a record to its problem.
    """

    def __init__(self, max_bad_records: int | None, source: str) -> None:
        self.reasons: dict[str, str] = {}
        self._max_bad_records = max_bad_records
        self._source = source
        self._lock = threading.Lock()

    def note(self, problems: tf.Tensor) -> tf.Tensor:
        """Records the bad records of a batch when the graph runs.

        Args:
            problems: string [batch]; empty for good records, as `describe` returns them for bad ones.

        Returns:
            float32 [batch], 1 for a good record and 0 for a bad one.

        Raises:
            tf.errors.InvalidArgumentError: there are too many, while the graph runs.
        """
        is_good = problems == ''
        refusal = tf.cond(
            tf.reduce_all(is_good), lambda: tf.constant(''),
            lambda: tf.ensure_shape(tf.numpy_function(self._note, [problems], tf.string), []))
        with tf.control_dependencies([tf.debugging.Assert(refusal == '', [refusal])]):
            return tf.cast(is_good, tf.float32)

    def _note(self, problems):
        """Returns the error message that ends training; empty as long as training may continue."""
        for problem in filter(None, problems):
            refusal = self._note_one(*problem.decode(errors='replace').split('\n', 1))
            if refusal:
                return refusal.encode()
        return b''

    def _note_one(self, identifier, reason):
        file, _, number = identifier.rpartition('__')  # TFDS joins them in this way
        name = f'record {number} of {file}'
        with self._lock:
            if name in self.reasons:
                return ''
            self.reasons[name] = reason
            count = len(self.reasons)
        if self._max_bad_records is not None and count > self._max_bad_records:
            return (f'max_bad_records: {count} records of {self._source} cannot be used, {self._max_bad_records} are '
                    f'allowed; the last: {name} {reason}. Repair the data, or set max_bad_records higher.')
        logging.warning('Skipped %s, which %s; %d of at most %s bad records of %s.', name, reason, count,
                        self._max_bad_records, self._source)
        return ''


def describe(identifiers: tf.Tensor, reasons: tf.Tensor) -> tf.Tensor:
    """Returns strings [n] that say which records are bad and why.

    Args:
        identifiers: string [n], TFDS's identifiers of the examples.
        reasons: string [n], the problem of each, beginning with a verb.
    """
    return tf.strings.join([identifiers, reasons], '\n')
