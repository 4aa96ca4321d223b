"""Images that a trained classifier misclassifies, found on this machine's processor."""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from lingpipe import hyperparams
from lingpipe.models import image_classifier
from lingpipe.training import checkpoint_contents, experiment
from lingpipe.training import logdir as logdirs

_MOST_SHOWN, _MOST_EXAMPLES, _LEAST_EXAMPLES = 16, 512, 32
_MOST_FLOPS = 3e10  # some seconds on one core


class Found(NamedTuple):
    """The misclassified images of a dataset.

    Attributes:
        step: step of the checkpoint.
        num_examples: how many images were classified.
        num_wrong: how many of them were misclassified.
        shown: of the first of these, the pixels, float `[height, width, 1 or 3]`, the class, and the predicted class.
    """

    step: int
    num_examples: int
    num_wrong: int
    shown: list[tuple[Any, int, int]]


def shows_images(params: hyperparams.Params) -> bool:
    """Returns whether an experiment classifies images of one or three channels."""
    if not issubclass(params.task.cls, image_classifier.ImageClassifier):
        return False
    spec = params.input.cls.InputSpec(params.input)
    return isinstance(spec, tf.TensorSpec) and len(spec.shape) == 4 and spec.shape[3] in (1, 3)


def too_expensive(flops: int) -> bool:
    """Returns whether a few forward passes of so many floating-point operations take a processor too long."""
    return _LEAST_EXAMPLES * flops > _MOST_FLOPS


def find(params: hyperparams.Params, data_params: hyperparams.InstantiableParams, logdir: logdirs.LogDir,
         flops: int) -> Found:
    """Classifies the first images of a dataset with the newest checkpoint.

    Args:
        params: the experiment's Params.
        data_params: Params of the evaluation input.
        logdir: `LogDir` of the run.
        flops: floating-point operations of the forward pass of one image.

    Raises:
        TrainingError: there is no checkpoint, or it cannot be read.
        ValueError: the input cannot be built.
    """
    params = experiment.evaluation_params(params)
    params.task.body = experiment.on_one_device(params.task.body, 'CPU:0')
    data = experiment.build_input(data_params, params.train.random_seed)
    task = experiment.build_task(params, data.input_spec)
    reader = checkpoint_contents.WeightReader(task.body, params.train.checkpoint_timeout_seconds)
    step = reader.restore_chosen(None, logdir.train)
    at_most = int(min(_MOST_EXAMPLES, _MOST_FLOPS // max(flops, 1)))
    batches = data.evaluation_dataset().unbatch().filter(lambda *example: example[-1] > 0).take(at_most).batch(
        data.params.batch_size)
    return Found(step, *_wrong(task.body, batches))


def _wrong(body, batches):
    num_examples, num_wrong, shown = 0, 0, []
    for images, labels, _ in batches:
        logits = tf.nest.flatten(body(images, training=False))[0]
        predictions, labels = np.argmax(logits, -1), labels.numpy()
        wrong = np.flatnonzero(predictions != labels)
        num_examples, num_wrong = num_examples + len(labels), num_wrong + len(wrong)
        shown += [(images[index].numpy(), int(labels[index]), int(predictions[index]))
                  for index in wrong[:_MOST_SHOWN - len(shown)]]
    return num_examples, num_wrong, shown
