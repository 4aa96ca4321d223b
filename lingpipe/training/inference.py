"""Export of a trained model, and generation, translation and classification by the model."""

import json
import os
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from lingpipe import hyperparams
from lingpipe.input import base_input
from lingpipe.keras_graph import lora
from lingpipe.models import image_classifier, language_model, prompted_texts, translation_model
from lingpipe.models.sampling import Sampling
from lingpipe.training import errors, evaluation
from lingpipe.training import logdir as logdirs

_NUM_DIGITS = 6
_NOT_FINITE = b'the model returns numbers that are not finite'


class Exporter(evaluation.TrainedTask):
    """Export of a checkpoint as a Keras model on one device."""

    def __init__(self, params: hyperparams.Params, logdir: str) -> None:
        params = params.Copy()
        params.task.body.Set(num_partitions=1, num_virtual_stages=1, num_replicas=1, num_micro_batches=1,
                             schedule='gpipe', partition_by='flops', devices=['CPU:0'])
        super().__init__(params, logdir, None)
        self._body = self._task.body
        name = (params.task.name or 'model').replace('/', '_')  # Keras allows no '/' in the name of a model
        self._model = self._body.model or self._build(name)
        self._preprocessing = params.input.cls.Preprocessing(params.input)
        self._served = self._model if self._preprocessing is None else self._of_plain_data(name)

    def run(self, path: str | None = None) -> list[str]:
        """Export a checkpoint, by default the newest. Return all paths, first the Keras file and the SavedModel."""
        step = self._reader.restore_chosen(path, self._logdir.train)
        folder = self._logdir.create_folder('export')
        keras_path, saved_model_path = (tf.io.gfile.join(folder, name) for name in ('model.keras', 'saved_model'))
        with lora.merged(self._model):
            self._served.save(keras_path)
            self._served.export(saved_model_path, verbose=False)
            others = [*self._export_classes(folder), *self._export_source(folder)]
        print(f'step {step}: ' + ', '.join([keras_path, saved_model_path, *others])
              + ('; both models take pixels from 0 to 255' if self._preprocessing else ''), flush=True)
        return [keras_path, saved_model_path, *others]

    def _export_classes(self, folder: str) -> list[str]:
        """Write the names of the classes if they exist, and return the paths."""
        names = self._params.input.cls.ClassNames(self._params.input)
        if names is None:
            return []
        path = tf.io.gfile.join(folder, 'classes.json')
        logdirs.replace_text(path, f'{json.dumps(names, ensure_ascii=False)}\n')
        return [path]

    def _export_source(self, folder: str) -> list[str]:
        """Save the model in any additional formats, such as a KerasHub preset, and return the paths."""
        source = self._params.task.body.model
        if source is None:
            return []
        tokenizer = self._params.input.tokenizer if 'tokenizer' in self._params.input else None
        return source.Instantiate().export(self._model, folder, tokenizer and tokenizer.Instantiate())

    def _build(self, name: str) -> keras.Model:
        inputs = outputs = _keras_inputs(self._input_spec)
        for layer in self._body.stack:
            outputs = layer(outputs)
        return keras.Model(inputs, outputs, name=name)

    def _of_plain_data(self, name: str) -> keras.Model:
        """Return a model that preprocesses plain data, such as pixels from 0 to 255."""
        inputs = _keras_inputs(self._input_spec)
        return keras.Model(inputs, self._model(self._preprocessing(inputs)), name=f'{name}_of_plain_data')


def _keras_inputs(specs: tf.TensorSpec | dict[str, tf.TensorSpec],
                  name: str = 'inputs') -> keras.KerasTensor | dict[str, keras.KerasTensor]:
    """Return a Keras input for each spec."""
    if isinstance(specs, dict):
        return {key: _keras_inputs(spec, key) for key, spec in specs.items()}
    return keras.Input(specs.shape[1:], dtype=specs.dtype.name, name=name)


class CheckpointGeneration(evaluation.TrainedTask):
    """Generation of text by a trained model. No dataset is read."""

    def __init__(self, params: hyperparams.Params, logdir: str, sampling: Sampling,
                 devices: list[str] | None = None) -> None:
        if not issubclass(params.task.cls, language_model.LanguageModel):
            raise errors.TrainingError(
                f'--mode=generate needs a LanguageModel, but the task of this model is {params.task.cls.__name__}. '
                'Choose a --model such as params.transformer_lm.')
        self._sampling = sampling.validate()
        self._tokenizer = params.input.tokenizer.Instantiate()
        super().__init__(params, logdir, devices)

    def run(self, prompts: list[str], num_tokens: int, path: str | None = None) -> list[str]:
        """Print prompts and their continuations, and return the continuations.

        Args:
            prompts: texts to continue, or the source texts of a sequence-to-sequence model.
            num_tokens: largest number of tokens to generate for each prompt.
        """
        self._reader.restore_chosen(path, self._logdir.train)
        writer = prompted_texts.text_writer(self._task.body, self._tokenizer, self._input_spec, self._sampling)
        found = writer.texts(prompts, num_tokens)
        for number, (prompt, text) in enumerate(zip(prompts, found), 1):
            heading = f'--- {number} of {len(prompts)}\n' if len(prompts) > 1 else ''
            print(heading + writer.shown(prompt, text), flush=True)
        return found


class CheckpointTranslation(evaluation.TrainedTask):
    """Translation of texts by a trained model. No dataset is read."""

    def __init__(self, params: hyperparams.Params, logdir: str, devices: list[str] | None = None) -> None:
        tokenizer = params.input.tokenizer.Instantiate()
        super().__init__(params, logdir, devices)
        self._translator = translation_model.Translator(self._task, tokenizer, self._input_spec)

    def run(self, text: str, path: str | None = None) -> str:
        """Print and return the translation of a text."""
        self._reader.restore_chosen(path, self._logdir.train)
        translation = self._translator(text)
        print(translation, flush=True)
        return translation


class Prediction(evaluation.TrainedTask):
    """Classification of files by a trained model. The dataset of the run is not read.

    ::

        images/*.png ──> pixels as in evaluation ──> body ──> softmax ──> {"input": "images/a.png", "class": "7", ...}
    """

    def __init__(self, params: hyperparams.Params, logdir: str, devices: list[str] | None = None) -> None:
        if not issubclass(params.task.cls, image_classifier.ImageClassifier):
            raise errors.TrainingError(
                f'--mode=predict needs an ImageClassifier, but the task of this model is {params.task.cls.__name__}. '
                'Choose another --model, or use --mode=generate for texts.')
        super().__init__(params, logdir, devices)
        self._input, self._class_names = params.input, params.input.cls.ClassNames(params.input)

    def run(self, files: str, output: str | None = None, path: str | None = None) -> list[dict[str, Any]]:
        """Write a line of JSON for each example, in the order of the files. Return the lines as dictionaries.

        Args:
            files: path of a file or a folder, or a glob pattern.
            output: path of the file to write or replace; None: print the lines.
        """
        if output and os.path.realpath(output) in map(os.path.realpath, base_input.paths_of(files)):
            raise ValueError(f'--output={output} is also the --input, which would be lost. Give another --output.')
        count, batches = self._input.cls.FileBatches(self._input, files)
        step = self._reader.restore_chosen(path, self._logdir.train)
        lines = [line for batch in batches for line in self._of_batch(*batch)]
        is_printed = output is None  # a terminal may lack characters
        text = ''.join(f'{json.dumps(line, ensure_ascii=is_printed)}\n' for line in lines)
        if output is None:
            print(text, end='', flush=True)
            return lines
        tf.io.gfile.makedirs(os.path.dirname(output) or '.')
        with tf.io.gfile.GFile(output, 'w') as file:
            file.write(text)
        num_bad = sum('problem' in line for line in lines)
        bad = f', {num_bad:,} of them not possible' if num_bad else ''
        print(f'step {step}: {count:,} predictions in {output}{bad}', flush=True)
        return lines

    def _of_batch(self, inputs: Any, names: tf.Tensor, problems: tf.Tensor) -> Iterator[dict[str, Any]]:
        logits = tf.nest.flatten(self._task.body(inputs, training=False))[0]
        probabilities = tf.nn.softmax(tf.cast(logits, tf.float32))
        for name, problem, row in zip(names.numpy(), problems.numpy(), probabilities.numpy()):
            line = {'input': name.decode(errors='replace')}
            number, known = int(np.argmax(row)), self._class_names or []
            problem = problem or (b'' if np.isfinite(row).all() else _NOT_FINITE)
            yield line | ({'problem': problem.decode(errors='replace')} if problem else {
                'class': known[number] if number < len(known) else str(number),
                'probability': round(float(row[number]), _NUM_DIGITS)})
