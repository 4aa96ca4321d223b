"""The mode `predict`: classifies files of images or texts with a trained model."""

import json
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from lingpipe import hyperparams
from lingpipe.input import base_input
from lingpipe.models import image_classifier
from lingpipe.training import errors, inference

_NUM_DIGITS = 6
_NOT_FINITE = b'the model returns numbers that are not finite'


class Prediction(inference.TrainedTask):
    """Classifies files with a checkpoint of a run; only the description of its dataset is used.

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
        """Write a line of JSON for each example, in the order of the files, and return them.

        Args:
            files: path of a file or a folder, or a glob pattern.
            output: path of the file to write or replace; its folder is created if needed; None: print the lines.
            path: checkpoint; None: the newest.
        """
        if output is not None:
            _require_other_file(output, files)
        count, batches = self._input.cls.FileBatches(self._input, files)
        step = self._reader.restore_chosen(path, self._logdir.train)
        lines = [line for batch in batches for line in self._of_batch(*batch)]
        is_printed = output is None  # to a terminal that may lack characters
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


def _require_other_file(output: str, files: str) -> None:
    target, inputs = os.path.realpath(output), list(map(os.path.realpath, base_input.paths_of(files)))
    if target in inputs or os.path.exists(target) and any(target.startswith(f'{path}/') for path in inputs):
        raise ValueError(f'--output={output} is also the --input, which would be lost. Give another --output.')
