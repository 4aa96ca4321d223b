"""A `PipelineModel` that takes raw texts and images, as tasks of KerasHub do."""

import math
from typing import Any

import keras
import tensorflow as tf

from lingpipe.models import pipeline_model, pipelined_generation

_DEFAULT_BATCH_SIZE = 32  # Keras's
_DEFAULT_SAMPLER = 'top_k'  # KerasHub's


@keras.saving.register_keras_serializable(package='lingpipe')
class HubPipelineModel(pipeline_model.PipelineModel):
    """A Keras model that trains a pipeline of a KerasHub task on raw examples::

        strings ─> batches ─> preprocessor of the task, by tf.data ─> tensors ─> Keras's fit ─> pipeline

    `PipelineModel(pipe)` makes a `HubPipelineModel` if the pipeline was made from such a task. `fit` does not shuffle
    raw examples. To shuffle, pass a shuffled `tf.data.Dataset`.
    """

    @property
    def preprocessor(self) -> keras.Layer:
        """The preprocessor of the task, or None if the task takes tensors."""
        return self.source.preprocessor

    def fit(self, x: Any = None, y: Any = None, batch_size: int | None = None, epochs: int = 1,
            verbose: int | str = 'auto', callbacks: Any = None, validation_split: float = 0.0,
            validation_data: Any = None, shuffle: bool = True, class_weight: Any = None,
            sample_weight: Any = None, initial_epoch: int = 0, steps_per_epoch: int | None = None,
            validation_steps: int | None = None, validation_batch_size: int | None = None,
            validation_freq: int = 1) -> Any:
        """Train on raw examples; see `keras.Model.fit` and KerasHub's tasks."""
        if self.preprocessor is not None:
            (x, y, sample_weight), validation_data = _split((x, y, sample_weight), validation_split, validation_data)
            x, y, sample_weight = self._batches(x, y, sample_weight, batch_size), None, None
            if validation_data is not None:
                parts = _unpacked(validation_data)
                validation_data = self._batches(*parts, validation_batch_size or batch_size)
            batch_size = validation_batch_size = None
            validation_split, shuffle = 0.0, False  # the data are already batches
        return super().fit(
            x, y, batch_size, epochs, verbose, callbacks, validation_split, validation_data, shuffle, class_weight,
            sample_weight, initial_epoch, steps_per_epoch, validation_steps, validation_batch_size, validation_freq)

    def evaluate(self, x: Any = None, y: Any = None, batch_size: int | None = None, verbose: int | str = 'auto',
                 sample_weight: Any = None, steps: int | None = None, callbacks: Any = None, return_dict: bool = False,
                 **cache: Any) -> Any:
        """Evaluate raw examples; see `keras.Model.evaluate`."""
        # Only `fit` passes `cache`, with preprocessed data.
        if self.preprocessor is not None and not cache:
            x, y, sample_weight, batch_size = self._batches(x, y, sample_weight, batch_size), None, None, None
        return super().evaluate(x, y, batch_size, verbose, sample_weight, steps, callbacks, return_dict, **cache)

    def predict(self, x: Any, batch_size: int | None = None, verbose: int | str = 'auto', steps: int | None = None,
                callbacks: Any = None) -> Any:
        """Compute the outputs for raw examples; see `keras.Model.predict`."""
        if self.preprocessor is not None:
            x, batch_size = self._batches(x, None, None, batch_size), None
        return super().predict(x, batch_size, verbose, steps, callbacks)

    def generate(self, inputs: Any, max_length: int | None = None, stop_token_ids: Any = 'auto',
                 strip_prompt: bool = False, sampler: Any = None) -> Any:
        """Generate text as the task does. The devices work on different groups of prompts at the same time.

        See KerasHub's `CausalLM.generate` and `Seq2SeqLM.generate`, and `pipelined_generation.PipelinedGeneration`.

        Args:
            inputs: texts for the task's preprocessor, or, without preprocessor, dictionary of arrays `[batch, length]`.
            max_length: largest number of tokens of prompt and text together; None: the preprocessor's length.
            stop_token_ids: list of tokens that end a text; 'auto': the end tokens of the tokenizer; None: none.
            strip_prompt: whether prompts are left out of the results.
            sampler: KerasHub sampler or its name; None: the sampler of the task, by default 'top_k'.

        Raises:
            NotImplementedError: a pipeline does not support the sampler or the task.
        """
        from keras_hub import samplers  # pylint: disable=import-outside-toplevel

        if sampler is not None or not hasattr(self.source, 'sampler'):
            sampler = samplers.get(sampler or _DEFAULT_SAMPLER)
            pipelined_generation.require_known(sampler)
            self.source.sampler = sampler
        with pipelined_generation.replaced(self.source, {'generate_function': self._generate_tokens}):
            return self.source.generate(inputs, max_length, stop_token_ids, strip_prompt)

    def _generate_tokens(self, inputs, stop_token_ids=None):
        self._build_for({name: inputs[name] for name in self.source.input})
        key = id(self.source.sampler), self.pipe.jit_compile
        if self._kept.generation is None or self._kept.generation[0] != key:
            generation = pipelined_generation.PipelinedGeneration(
                self.source, self.pipe.stages, self.pipe.params.num_partitions, self.pipe.jit_compile)
            self._kept.generation = key, generation
        return self._kept.generation[1](inputs, stop_token_ids)

    def train_on_batch(self, x: Any, y: Any = None, sample_weight: Any = None, class_weight: Any = None,
                       return_dict: bool = False) -> Any:
        """Train on a batch of raw examples; see `keras.Model.train_on_batch`."""
        x, y, sample_weight = self._preprocessed(x, y, sample_weight)
        return super().train_on_batch(x, y, sample_weight, class_weight, return_dict)

    def test_on_batch(self, x: Any, y: Any = None, sample_weight: Any = None, return_dict: bool = False) -> list[float]:
        """Evaluate a batch of raw examples; see `keras.Model.test_on_batch`."""
        return super().test_on_batch(*self._preprocessed(x, y, sample_weight), return_dict)

    def predict_on_batch(self, x: Any) -> Any:
        """Compute the outputs for a batch of raw examples; see `keras.Model.predict_on_batch`."""
        return super().predict_on_batch(self._preprocessed(x, None, None)[0])

    def _preprocessed(self, x, y, sample_weight):
        if self.preprocessor is None:
            return x, y, sample_weight
        return keras.utils.unpack_x_y_sample_weight(self.source.preprocess_samples(x, y, sample_weight))

    def _batches(self, x, y, sample_weight, batch_size):
        """Return a `tf.data.Dataset` of preprocessed batches."""
        if not isinstance(x, tf.data.Dataset):  # a dataset must already consist of batches
            parts = keras.utils.pack_x_y_sample_weight(x, y, sample_weight)
            x = tf.data.Dataset.from_tensor_slices(_map_arrays(tf.convert_to_tensor, parts))
            x = x.batch(batch_size or _DEFAULT_BATCH_SIZE)
        return x.map(self.source.preprocess_samples, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


def _map_arrays(function, nest):
    """Apply a function to each array in nested tuples and dictionaries."""
    if isinstance(nest, tuple):
        return tuple(_map_arrays(function, part) for part in nest)
    if isinstance(nest, dict):
        return {key: _map_arrays(function, part) for key, part in nest.items()}
    return None if nest is None else function(nest)  # a list is one array


def _unpacked(data):
    return (data, None, None) if isinstance(data, tf.data.Dataset) else keras.utils.unpack_x_y_sample_weight(data)


def _split(examples, fraction, validation_data):
    """Return training and validation data, split from `examples` if necessary."""
    if not fraction or validation_data is not None:
        return examples, validation_data
    sizes = []
    _map_arrays(lambda part: sizes.append(len(part)), examples)
    end = math.floor(sizes[0] * (1 - fraction))
    return (_map_arrays(lambda part: part[:end], examples), _map_arrays(lambda part: part[end:], examples))
