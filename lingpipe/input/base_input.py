"""Base classes of inputs, which make batches of examples."""

import os
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from lingpipe import hyperparams
from lingpipe.input import row_order

# No function of an input branches on a tensor. AutoGraph would take most of the start-up time to find that out.
without_autograph = tf.autograph.experimental.do_not_convert
_FIELDS_OF_SOURCE = ('name', 'files', 'dataset', 'split', 'data_dir')


def parallel_map(dataset: tf.data.Dataset, function: Callable[..., Any]) -> tf.data.Dataset:
    """Map a dataset with parallel calls. The results keep their order."""
    return dataset.map(function, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


def paths_of(files: str) -> list[str]:
    """Return the sorted paths of a file, a folder or a glob pattern. Raise ValueError if no file is found."""
    files = os.path.expanduser(files)
    if tf.io.gfile.isdir(files):
        found = [os.path.join(files, name) for name in tf.io.gfile.listdir(files)]
    else:
        found = [files] if tf.io.gfile.exists(files) else tf.io.gfile.glob(files)
    paths = sorted(path for path in found if not tf.io.gfile.isdir(path))
    if not paths:
        raise ValueError(f'files: {files!r} names no file. Give the path of a file, a folder of files, or a pattern '
                         "such as 'data/*.jsonl'.")
    return paths


def filled_up(batches: tf.data.Dataset, batch_size: int) -> tf.data.Dataset:
    """Pad the last batch with rows of zeros to the static size `batch_size`."""

    def filled(part):
        missing = [[0, batch_size - tf.shape(part)[0]]] + [[0, 0]] * (part.shape.rank - 1)
        return tf.ensure_shape(tf.pad(part, missing), [batch_size, *part.shape[1:]])

    return parallel_map(batches, lambda *parts: tf.nest.map_structure(filled, parts))


class BaseInput:
    """Batches of examples for training and evaluation.

    A subclass extends `Params()`. Its static method `InputSpec(params)` returns `tf.TensorSpec`s for the nest of inputs
    in a batch, and prepares no data. A subclass overrides `TargetSpec(params)` if targets are not labels and weights.
    A subclass defines two methods that return a `tf.data.Dataset` of (inputs, *targets):

    * `training_dataset(position, share)` returns endless batches that begin after `position` examples, counted over all
      epochs. A resumed run gets the same batches as an uninterrupted run, bit for bit. The batch size may change at
      `position`. Batches have only the rows of `share`. The method raises ValueError if no such batch can be made.
    * `evaluation_dataset()` returns every example once, in stored order. Rows that pad the last batch have weight 0.

    A wrong field raises ValueError. Data that cannot be prepared raise RuntimeError.
    """

    example_name = 'examples'
    # Maps the name of each skipped record to its problem; None: records are not checked.
    bad_records: Any = None
    InputSpec: Callable[[hyperparams.Params], Any]
    training_dataset: Callable[..., tf.data.Dataset]
    evaluation_dataset: Callable[..., tf.data.Dataset]

    @classmethod
    def Params(cls) -> hyperparams.InstantiableParams:
        """Return the InstantiableParams of this input."""
        p = hyperparams.InstantiableParams(cls)
        p.Define('name', None, 'Name of the input.')
        p.Define('dataset', None, 'TFDS name of the dataset.')
        p.Define('data_dir', None, 'Directory of prepared data; None: $TFDS_DATA_DIR, or ~/tensorflow_datasets.')
        p.Define('split', 'train', "TFDS split, such as 'train', 'test' or 'train[:90%]'.")
        p.Define('batch_size', None, 'Number of examples in a batch.')
        p.Define('shuffle', True, 'Whether training visits the examples in a new random order in every epoch.')
        p.Define(
            'seed', None, "Integer from 0 that fixes order and augmentation; None: the training's random_seed, or 0.")
        return p

    @staticmethod
    def TargetSpec(params: hyperparams.Params) -> tuple:
        """Return the `tf.TensorSpec`s of labels and weights, both `[batch_size]`. No data are prepared."""
        return tf.TensorSpec([params.batch_size], tf.int32), tf.TensorSpec([params.batch_size], tf.float32)

    @staticmethod
    def Preprocessing(params: hyperparams.Params) -> keras.layers.Layer | None:
        """Return the preprocessing layer of an exported model. None: no preprocessing is needed."""
        del params
        return None

    @staticmethod
    def ClassNames(params: hyperparams.Params) -> list[str] | None:
        """Return the class names, ordered by class number. None: there are no class names."""
        del params
        return None

    @staticmethod
    def FileBatches(params: hyperparams.Params, files: str) -> tuple[int, tf.data.Dataset]:
        """Read batches of unlabelled examples, and preprocess them as in evaluation.

        Args:
            files: a file, a folder or a glob pattern.

        Returns:
            The number of examples, and a `tf.data.Dataset` of (inputs `[rows, ...]`, names `[rows]`, problems
            `[rows]`). Names and problems are strings. A problem says why an example is invalid; '' if it is valid.
        """
        raise ValueError(f'{params.cls.__name__} reads no files for --mode=predict, as ImageInput and '
                         'TextClassificationInput do. Export the model, and call it from Python.')

    def __init__(self, params: hyperparams.Params) -> None:
        self.params = params.Copy()
        self.params.seed = params.seed or 0
        self.params.Freeze()
        self._check_params()
        self.input_spec = self.InputSpec(self.params)

    @property
    def source(self) -> str:
        """Name of the data in messages, such as the dataset and the split."""
        fields = {field: self.params.Get(field) for field in _FIELDS_OF_SOURCE if field in self.params}
        named = ', '.join(f'{field}={value!r}' for field, value in fields.items() if value is not None)
        return f'{self.params.cls.__name__}({named})'

    @property
    def batch_spec(self) -> tuple:
        """`tf.TensorSpec`s of the inputs and of each target in a batch."""
        return self.input_spec, *self.TargetSpec(self.params)

    def _check_params(self):
        """Raise ValueError if a field is invalid."""
        self._check_at_least(batch_size=1, seed=0)

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
        """Prefetch batches, always in the same order."""
        options = tf.data.Options()
        options.deterministic = True
        return batches.prefetch(tf.data.AUTOTUNE).with_options(options)


class MemoryInput(BaseInput):
    """An input that keeps all rows in memory.

    A subclass defines `_columns`, which are tensors `[n, ...]` with all rows. Its method `_batch(*columns)` gets the
    columns with only the rows of a batch, and makes the batch.
    """

    _columns: tuple[tf.Tensor, ...] = ()
    _batch: Callable[..., tuple]

    @without_autograph
    def training_dataset(self, position: int = 0, share: row_order.Share = row_order.WHOLE) -> tf.data.Dataset:
        """Return endless batches that begin after `position` rows. See `BaseInput`."""
        self._check_position(position)
        size = self.params.batch_size
        numbers = share.of(self._numbers(position), size).batch(share.size(size), drop_remainder=True)
        return self._finish(parallel_map(numbers, self._batch_of))

    @without_autograph
    def evaluation_dataset(self) -> tf.data.Dataset:
        """Return every row once, in stored order. Rows of weight 0 pad the last batch."""
        size = self.params.batch_size
        numbers = tf.data.Dataset.range(self.num_examples).batch(size)
        return self._finish(filled_up(parallel_map(numbers, self._batch_of), size))

    def _numbers(self, position: int) -> tf.data.Dataset:
        """Return the numbers of the rows that training visits after its first `position` rows."""
        return row_order.endless(self.num_examples, position, self.params.seed, self.params.shuffle)

    def _batch_of(self, numbers: tf.Tensor) -> tuple:
        return self._batch(*(tf.gather(column, numbers) for column in self._columns))

    @property
    def num_examples(self) -> int:
        """Number of rows in an epoch."""
        return len(self._columns[0])
